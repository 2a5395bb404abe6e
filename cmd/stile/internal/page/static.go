package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"time"
)

//go:embed static
var staticFiles embed.FS

// contentTypes are those of the page's files. The system's tables could say something else.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon", ".woff2": "font/woff2",
}

// serveFile serves a file of the page; a directory is not found.
func serveFile(w http.ResponseWriter, r *http.Request, name string) {
	text, err := fs.ReadFile(staticFiles, path.Join("static", path.Clean("/"+name)))
	contentType, known := contentTypes[path.Ext(name)]
	if err != nil || !known {
		refuse(w, http.StatusNotFound, "there is no such page")
		return
	}
	hash := sha256.Sum256(text)
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-cache") // asks again each time, because stile may have been upgraded
	w.Header().Set("ETag", `"`+hex.EncodeToString(hash[:16])+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
}
