package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/storeurl"
)

// completionTimeout bounds how long a completion waits for the store. Names that are not known by
// then are not offered.
const completionTimeout = time.Second

func newCompletion() *cobra.Command {
	scripts := completionScripts()
	var shells []string
	for _, s := range scripts {
		shells = append(shells, s.shell)
	}
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print the script with which a shell completes command lines of stile",
		Long: `Print the script with which a shell completes command lines of stile: verbs, flags, names of
locks, and after -- whatever the shell would complete.

SHELL is one of ` + strings.Join(shells, ", ") + `.

The names are those of locks that are held or waited for, in the store that the command would
use. No local server is started to complete a name. If the store does not reply within a
second, no names are offered. Names that a shell would have to quote are never offered.

No other package is needed; with the package bash-completion, bash completes the command
after -- and its arguments better.`,
		Example: `  source <(stile completion bash)                     # in ~/.bashrc
  stile completion bash >/etc/bash_completion.d/stile # or for everybody
  stile completion zsh >"${fpath[1]}/_stile"
  stile completion fish >~/.config/fish/completions/stile.fish`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains(shells, args[0]) {
				return fmt.Errorf("name one shell: %s; see stile completion --help", strings.Join(shells, ", "))
			}
			return nil
		},
		ValidArgs: shells,
		RunE: func(cmd *cobra.Command, args []string) error {
			i := slices.Index(shells, args[0])
			script, err := scripts[i].generate(cmd.Root())
			if err != nil {
				return err
			}
			_, err = io.WriteString(cmd.OutOrStdout(), script)
			return err
		},
	}
}

// completionScript is the script with which a shell asks stile for completions. It is Cobra's
// script with an insertion after the given line: Cobra makes stile complete what follows --, but
// that is the shell's job.
type completionScript struct {
	shell    string
	write    func(root *cobra.Command, w io.Writer) error
	after    string
	inserted string
}

func completionScripts() []completionScript {
	return []completionScript{
		{
			"bash", func(root *cobra.Command, w io.Writer) error { return root.GenBashCompletionV2(w, true) },
			"\n__start_stile()\n{\n", bashInsertion,
		},
		{"zsh", (*cobra.Command).GenZshCompletion, "\n_stile()\n{\n", zshInsertion},
		{
			"fish", func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) },
			"\nfunction __stile_perform_completion\n", fishInsertion,
		},
	}
}

func (s completionScript) generate(root *cobra.Command) (string, error) {
	var b bytes.Buffer
	if err := s.write(root, &b); err != nil {
		return "", err
	}
	before, after, ok := strings.Cut(b.String(), s.after)
	if !ok {
		return "", fmt.Errorf("the completion script for %s has no place for what stile adds", s.shell)
	}
	return before + s.after + s.inserted + after, nil
}

// bashInsertion leaves the words after -- to the shell. Where the bash-completion package is missing,
// it also joins the words that bash has split at colons and equals signs, which lock names may
// contain.
const bashInsertion = `    local i
    for ((i = 2; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[1]} == @(run|elect|once) && ${COMP_WORDS[i]} == -- ]]; then
            if declare -F _command_offset >/dev/null; then
                _command_offset $((i + 1))
            elif ((COMP_CWORD == i + 1)); then
                local IFS=$'\n'
                COMPREPLY=($(compgen -c -- "${COMP_WORDS[COMP_CWORD]}"))
            fi
            return
        fi
    done

    __stile_init_completion()
    {
        declare -F _get_comp_words_by_ref >/dev/null && { _get_comp_words_by_ref "$@" cur prev words cword; return; }
        local rest=$COMP_LINE word
        words=()
        for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
            if [[ ${#words[@]} == 0 || $rest == [[:space:]]* ]]; then
                rest=${rest#"${rest%%[![:space:]]*}"}
                words+=("$word")
            else
                words[${#words[@]}-1]+=$word
            fi
            rest=${rest:${#word}}
        done
        cword=$((${#words[@]} - 1))
        cur=${words[cword]}
    }

`

const zshInsertion = `    local -i dashes=${words[(i)--]}
    if [[ $words[2] == (run|elect|once) ]] && (( dashes < CURRENT )); then
        words=("${(@)words[dashes+1,-1]}")
        (( CURRENT -= dashes ))
        _normal
        return
    fi

`

const fishInsertion = `    set -l typed (commandline -opc)
    if contains -- "$typed[2]" run elect once; and set -l dashes (contains -i -- -- $typed)
        set -l command (string escape -- $typed[(math $dashes + 1)..-1]) (commandline -ct)
        complete --do-complete "$command"
        echo :4 # that was all
        return
    end

`

// addCompletions sets the completions of every verb and every flag.
func addCompletions(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "run", "elect", "once":
			cmd.ValidArgsFunction = completeRun
		case "break", "graph", "hold", "ls", "show", "slots", "top", "trace", "wait", "watch":
			cmd.ValidArgsFunction = completeNames
		default:
			cmd.ValidArgsFunction = cobra.NoFileCompletions
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			var complete cobra.CompletionFunc
			switch {
			case f.Value.Type() == "format":
				complete = oneOf("json", "text")
			case f.Name == "restart":
				complete = oneOf("always", "never", "on-loss")
			case f.Name == "signal":
				complete = oneOf("HUP", "INT", "KILL", "QUIT", "TERM", "USR1", "USR2")
			case f.Value.Type() == "duration":
				complete = cobra.NoFileCompletions
			default: // a file, or free text
				return
			}
			_ = cmd.RegisterFlagCompletionFunc(f.Name, complete) // fails only for an unknown flag, or twice for the same one
		})
	}
}

// oneOf completes one of the given words, ignoring case.
func oneOf(words ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return slices.DeleteFunc(slices.Clone(words), func(word string) bool {
			return len(word) < len(typed) || !strings.EqualFold(word[:len(typed)], typed)
		}), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeRun completes NAME and the dashes after it. The shells' scripts complete what follows the
// dashes.
func completeRun(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	switch {
	case len(args) == 0:
		return completeNames(cmd, args, typed)
	case allNames(cmd) && !slices.Contains(args, "--") && !strings.HasPrefix(typed, "-"):
		return completeNames(cmd, args, typed)
	case len(args) == 1 && strings.HasPrefix("--", typed), allNames(cmd) && typed == "-":
		return []cobra.Completion{"--"}, cobra.ShellCompDirectiveNoFileComp
	default:
		return nil, cobra.ShellCompDirectiveDefault
	}
}

// allNames reports whether the verb takes several names, by --all.
func allNames(cmd *cobra.Command) bool {
	all := cmd.Flag("all")
	return all != nil && all.Changed
}

// completeNames completes the name of a lock with the names of existing lines. It reports no
// errors, because the user is typing a command line.
func completeNames(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	const directive = cobra.ShellCompDirectiveNoFileComp
	if len(args) > 0 && !allNames(cmd) {
		return nil, directive
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	chosen, err := chooseStore(cmd.Flag("url").Value.String())
	if err != nil {
		return nil, directive
	}
	opened, err := storeurl.Open(ctx, chosen.url, nil)
	if err != nil {
		return nil, directive
	}
	var names []cobra.Completion
	_ = withClientOn(ctx, opened, func(client *stile.Client) error {
		lines, err := client.Lines(ctx, typed)
		for _, l := range lines {
			if isPlain(l.Name) {
				names = append(names, cobra.CompletionWithDesc(l.Name, describe(l)))
			}
		}
		return err
	})
	return names, directive
}

// isPlain reports whether a name is the same word with and without quotes in every shell. Other
// names are not offered: everyone who can write to the store chooses names, and bash inserts the
// common prefix of several names without quotes.
func isPlain(name string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	return name != "" && strings.Trim(name, letters+"_./:@+,-=%") == "" && strings.Trim(name[:1], letters+"_./") == ""
}

// describe says in a few words who holds a lock.
func describe(l stile.Line) string {
	var words []string
	switch n := len(l.Holders); {
	case n > 0 && slotsOf(l) > 0:
		words = append(words, fmt.Sprintf("%d of %d slots taken", n, slotsOf(l)))
	case n > 1:
		words = append(words, fmt.Sprintf("%d hold it", n))
	case n == 1 && l.Holders[0].Owner.IsZero():
		words = append(words, "held")
	case n == 1:
		words = append(words, heldWord(l.Holders[0])+l.Holders[0].Owner.String())
	}
	if n := len(l.Waiters); n > 0 {
		words = append(words, fmt.Sprintf("%d waiting", n))
	}
	return strings.Join(words, ", ")
}
