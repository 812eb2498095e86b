package cli

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
	"github.com/agenthandoff/handoff/worker/output"
)

// binding is a set of flags that are fields of a struct.
type binding struct {
	fs     *pflag.FlagSet
	from   reflect.Value
	fields []boundField
}

// boundField is the flag of a field, and the indices that lead to the field.
type boundField struct {
	flag *pflag.Flag
	at   []int
}

// bind declares a flag for each tagged field of the struct that v points to:
//
//	flag:"NAME,SHORT,OPTION"  its name; a letter, if it has one; and commas (they separate values),
//	                          each (an empty value counts, too), or signed (a negative duration
//	                          is refused later, by its field)
//	doc:"which {VALUE} it is" its help; {} is the list of words that its type may have
//
// flag:"" binds the fields of a struct. The value of a field is the default of its flag. An int64
// whose field ends in MS is a duration, and one that ends in Micros is a cost.
func bind(fs *pflag.FlagSet, v any) *binding {
	b := &binding{fs: fs, from: reflect.ValueOf(v).Elem()}
	b.walk(b.from, nil)
	return b
}

func (b *binding) walk(v reflect.Value, at []int) {
	for i := range v.NumField() {
		field, of := v.Type().Field(i), v.Field(i)
		tag, tagged := field.Tag.Lookup("flag")
		at := append(slices.Clone(at), i)
		switch {
		case tagged && tag != "":
			b.fields = append(b.fields, boundField{declareField(b.fs, field, of), at})
		case !tagged:
		case of.Kind() != reflect.Pointer:
			b.walk(of, at)
		default:
			if of.IsNil() {
				of.Set(reflect.New(field.Type.Elem()))
			}
			b.walk(of.Elem(), at)
		}
	}
}

// over lays the fields whose flags are given over the struct that to points to.
func (b *binding) over(to any) {
	for _, f := range b.fields {
		if !f.flag.Changed {
			continue
		}
		from, to := b.from, reflect.ValueOf(to).Elem()
		for _, i := range f.at {
			if to.Kind() == reflect.Pointer {
				if to.IsNil() {
					to.Set(reflect.New(to.Type().Elem()))
				}
				from, to = from.Elem(), to.Elem()
			}
			from, to = from.Field(i), to.Field(i)
		}
		to.Set(from)
	}
}

// checkTexts refuses texts that are no UTF-8: JSON would replace their invalid bytes.
func (b *binding) checkTexts() error {
	for _, f := range b.fields {
		v := b.from.FieldByIndex(f.at)
		if texts := fmt.Sprint(v); v.Kind() != reflect.Struct && !utf8.ValidString(texts) {
			return protocol.Errorf(protocol.CodeText, f.flag.Name, "holds bytes that are no UTF-8")
		}
	}
	return nil
}

// inOrder adds flags to a set: the named ones first, in this order.
func inOrder(to, all *pflag.FlagSet, names string) {
	to.SortFlags, all.SortFlags = false, false
	for _, name := range strings.Fields(names) {
		to.AddFlag(all.Lookup(name))
	}
	all.VisitAll(func(f *pflag.Flag) {
		if to.Lookup(f.Name) == nil {
			to.AddFlag(f)
		}
	})
}

// wordsOf is the annotation of a flag with the values that it may have.
const wordsOf = "words"

// declareField declares the flag of one field.
func declareField(fs *pflag.FlagSet, field reflect.StructField, v reflect.Value) *pflag.Flag {
	tag := strings.Split(field.Tag.Get("flag")+",,", ",")
	name, short := tag[0], tag[1]
	own := v // the value that the flag sets
	if v.Kind() == reflect.Pointer {
		own = reflect.New(v.Type().Elem()).Elem()
		if !v.IsNil() {
			own.Set(v.Elem())
		}
	}
	words := wordsOfType(own.Type())
	usage := strings.NewReplacer("{}", strings.Join(words, ", "), "{", "`", "}", "`").Replace(field.Tag.Get("doc"))
	switch to := own.Addr().Interface().(type) {
	case pflag.Value:
		fs.VarP(to, name, short, usage)
	case *bool:
		fs.BoolVarP(to, name, short, *to, usage)
	case *int:
		fs.IntVarP(to, name, short, *to, usage)
	case *float64:
		fs.Float64VarP(to, name, short, *to, usage)
	case *time.Time:
		fs.VarP(&pastValue{to: to}, name, short, usage)
	case *time.Duration:
		fs.VarP(durationValue{to, tag[2] == "signed"}, name, short, usage)
	case *int64:
		switch {
		case strings.HasSuffix(field.Name, "MS"):
			fs.VarP(millisValue{to}, name, short, usage)
		case strings.HasSuffix(field.Name, "Micros"):
			fs.VarP((*costValue)(to), name, short, usage)
		default:
			fs.Int64VarP(to, name, short, *to, usage)
		}
	default:
		if own.Kind() == reflect.Slice {
			fs.VarP(&listValue{to: own, commas: tag[2] == "commas", each: tag[2] == "each"}, name, short, usage)
		} else {
			text := own.Addr().Convert(reflect.TypeFor[*string]()).Interface().(*string)
			fs.StringVarP(text, name, short, *text, usage)
		}
	}
	flag := fs.Lookup(name)
	if v.Kind() == reflect.Pointer {
		flag.Value = &pointerValue{flag.Value, func() { v.Set(own.Addr()) }}
	}
	if words != nil {
		flag.Annotations = map[string][]string{wordsOf: words}
	}
	return flag
}

// pointerValue is a flag whose field is absent unless it is given.
type pointerValue struct {
	pflag.Value
	given func()
}

func (p *pointerValue) Set(text string) error {
	p.given()
	return p.Value.Set(text)
}

// listValue is a flag that may be given again. Given once and empty it is no value, unless each is set.
type listValue struct {
	to                  reflect.Value
	commas, each, given bool
}

func (l *listValue) String() string { return "" }

func (l *listValue) Type() string {
	if l.commas {
		return "stringSlice"
	}
	return "stringArray"
}

func (l *listValue) Set(text string) (err error) {
	texts := []string{text}
	if l.commas && text != "" {
		if texts, err = csv.NewReader(strings.NewReader(text)).Read(); err != nil {
			return err
		}
	}
	if !l.given {
		l.to.SetZero()
	}
	if !l.given && text == "" && !l.each {
		return nil
	}
	l.given = true
	for _, text := range texts {
		one := reflect.New(l.to.Type().Elem())
		if one.Elem().Kind() == reflect.String {
			one.Elem().SetString(text)
		} else if err := json.Unmarshal(jsonText(text), one.Interface()); err != nil {
			return err
		}
		l.to.Set(reflect.Append(l.to, one.Elem()))
	}
	return nil
}

// enumerations are the values of each type that has a list of them.
var enumerations = []any{protocol.Types, protocol.Triggers, protocol.Priorities, protocol.Risks, protocol.OnTimeouts, protocol.BudgetActions,
	protocol.TransferModes, protocol.ReturnScopes, protocol.Aggregations, protocol.LateResults, protocol.HandoffModes, protocol.BarredModes,
	protocol.Approves, protocol.Phases, protocol.Outcomes, protocol.GateKinds, protocol.AuditTypes, protocol.Overlaps, protocol.MissedModes, ask.Sorts, ask.Bys, worker.Inputs, output.Modes}

// wordsOfType returns the words that a type, or an element of a list, may have; nil is any.
func wordsOfType(t reflect.Type) (words []string) {
	if t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	for _, list := range enumerations {
		if v := reflect.ValueOf(list); v.Type().Elem() == t {
			for i := range v.Len() {
				words = append(words, v.Index(i).String())
			}
		}
	}
	return words
}

// completeFlags completes the flags of all commands that have a list of words, or name an AGENT.
// cobra keeps completions in a process-wide map, so only the request of a shell registers any.
func (a *app) completeFlags(cmd *cobra.Command) {
	if !a.completing {
		return
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		complete := a.agentWords
		if words := f.Annotations[wordsOf]; words != nil {
			complete = cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
		} else if !strings.Contains(f.Usage, "`AGENT`") {
			return
		}
		_ = cmd.RegisterFlagCompletionFunc(f.Name, complete) // fails only where it is registered
	})
	for _, sub := range cmd.Commands() {
		a.completeFlags(sub)
	}
}
