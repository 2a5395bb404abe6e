package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

// contents returns what a program contains, for scanners: a CycloneDX bill of materials with Go, all
// modules, and which of them imports which.
func (p *product) contents(b *builder, program *program) ([]byte, error) {
	imports, err := moduleImports(b, program)
	if err != nil {
		return nil, err
	}
	platform := program.platform
	hash := sha256.Sum256(program.data)
	main := component(cyclonedx.ComponentTypeApplication, program.info.Main.Path, program.info.Main.Version)
	main.PackageURL += fmt.Sprintf("?goos=%s&goarch=%s", platform.os, platform.arch)
	main.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: fmt.Sprintf("%x", hash)}}
	main.Licenses = &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}}

	golang := component(cyclonedx.ComponentTypeLibrary, "std", program.info.GoVersion)
	golang.Version = strings.TrimPrefix(program.info.GoVersion, "go")
	golang.PackageURL = "pkg:golang/std@" + golang.Version
	components := []cyclonedx.Component{golang}
	refs := map[string]string{main.Name: main.BOMRef}
	for _, m := range program.info.Deps {
		if m.Replace != nil {
			return nil, fmt.Errorf("module %s is replaced", m.Path)
		}
		c := component(cyclonedx.ComponentTypeLibrary, m.Path, m.Version)
		components = append(components, c)
		refs[c.Name] = c.BOMRef
	}
	var dependencies []cyclonedx.Dependency
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		on := []string{golang.BOMRef}
		for _, other := range slices.Sorted(maps.Keys(imports[name])) {
			if refs[other] == "" {
				return nil, fmt.Errorf("%s imports %s, which the program does not list", name, other)
			}
			on = append(on, refs[other])
		}
		dependencies = append(dependencies, cyclonedx.Dependency{Ref: refs[name], Dependencies: &on})
	}

	bom := cyclonedx.NewBOM()
	bom.SerialNumber = uuid.NewSHA1(uuid.NameSpaceURL, hash[:]).URN() // random numbers would differ in each run
	bom.Metadata = &cyclonedx.Metadata{
		Timestamp: p.time.Format(time.RFC3339),
		Component: &main,
		Supplier:  &cyclonedx.OrganizationalEntity{Name: "Stile maintainers", URL: &[]string{homepage}},
	}
	bom.Components, bom.Dependencies = &components, &dependencies
	var text bytes.Buffer
	err = cyclonedx.NewBOMEncoder(&text, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	return text.Bytes(), err
}

func component(kind cyclonedx.ComponentType, path, version string) cyclonedx.Component {
	purl := "pkg:golang/" + path + "@" + url.PathEscape(version)
	return cyclonedx.Component{BOMRef: purl, Type: kind, Name: path, Version: version, PackageURL: purl}
}

// moduleImports returns, for each module in a program, those that its packages import.
func moduleImports(b *builder, program *program) (map[string]map[string]bool, error) {
	dir, err := b.source(program.info.Main.Path, program.info.Main.Version)
	if err != nil {
		return nil, err
	}
	out, err := b.run(dir, program.platform, "list", "-deps", "-json=ImportPath,Imports,Module", ".")
	if err != nil {
		return nil, err
	}
	type pkg struct {
		ImportPath string
		Imports    []string
		Module     *debug.Module
	}
	var packages []pkg
	modules := map[string]string{} // by package
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if p.Module != nil { // none for Go's own packages
			packages = append(packages, p)
			modules[p.ImportPath] = p.Module.Path
		}
	}
	imports := map[string]map[string]bool{}
	for _, p := range packages {
		from := p.Module.Path
		if imports[from] == nil {
			imports[from] = map[string]bool{}
		}
		for _, imported := range p.Imports {
			if to := modules[imported]; to != "" && to != from {
				imports[from][to] = true
			}
		}
	}
	return imports, nil
}
