package cli

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
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
		fs.VarP(durationValue[time.Duration]{to, 1, tag[2] == "signed"}, name, short, usage)
	case *int64:
		switch {
		case strings.HasSuffix(field.Name, "MS"):
			fs.VarP(durationValue[int64]{to, time.Millisecond, true}, name, short, usage)
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

// parseDuration reads a duration of Go ("1h30m"), with days before it ("2d", "1d12h"): deadlines
// are thought of in days.
func parseDuration(text string) (time.Duration, error) {
	wrong := fmt.Errorf("%q is not a duration; write 30s, 10m, 2h or 3d", text)
	rest, sign := strings.TrimPrefix(text, "-"), time.Duration(1)
	if rest != text {
		sign = -1
	}
	var total time.Duration
	if days, after, ok := strings.Cut(rest, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return 0, wrong
		}
		total, rest = time.Duration(n)*24*time.Hour, after
		if rest == "" {
			return sign * total, nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 {
		return 0, wrong
	}
	return sign * (total + d), nil
}

// parseInstant reads a deadline: an instant, or a duration from now on.
func parseInstant(text string, now time.Time) (at time.Time, relative bool, err error) {
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return at.UTC(), false, nil
	}
	d, err := parseDuration(text)
	if err != nil {
		return time.Time{}, false, fmt.Errorf("%q is neither a duration (2h, 3d) nor an instant (2026-01-31T17:00:00Z)", text)
	}
	// People and logs can compare milliseconds.
	return now.Add(d).UTC().Truncate(time.Millisecond), true, nil
}

// parsePast reads an instant, or a duration before now.
func parsePast(text string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return at.UTC(), nil
	}
	d, err := parseDuration(text)
	if err != nil || d < 0 {
		return time.Time{}, fmt.Errorf("%q is neither a duration (2h, 3d) nor an instant (2026-01-31T17:00:00Z)", text)
	}
	return now.Add(-d), nil
}

// pastValue is a flag that is an instant, or a duration before now.
type pastValue struct {
	to  *time.Time
	ago bool // it is a duration
}

func (v *pastValue) String() string { return "" }

func (v *pastValue) Type() string { return "WHEN" }

func (v *pastValue) Set(text string) (err error) {
	if *v.to, err = parsePast(text, time.Now().Truncate(time.Millisecond)); err == nil {
		_, err := parseDuration(text)
		v.ago = err == nil
	}
	return err
}

// parseVariables reads k=v pairs. v is JSON if it parses as JSON, else a string.
func parseVariables(flag string, pairs []string) (map[string]json.RawMessage, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	variables := make(map[string]json.RawMessage, len(pairs))
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, usagef("%s %q: write name=value", flag, pair)
		}
		if !utf8.ValidString(pair) { // encoding/json would put something else in its place
			return nil, protocol.Errorf(protocol.CodeText, strings.TrimPrefix(flag, "--"), "%q holds bytes that are no UTF-8", pair)
		}
		variables[key] = api.JSONOrText(value)
	}
	return variables, nil
}

// addVariables lays k=v pairs over variables.
func addVariables(to *map[string]json.RawMessage, flag string, pairs []string) error {
	variables, err := parseVariables(flag, pairs)
	if *to == nil {
		*to = variables
	} else {
		maps.Copy(*to, variables)
	}
	return err
}

// checkWords refuses words that would not be written as they were given: invalid text, and text
// longer than an event keeps.
func checkWords(field, text string) error {
	switch {
	case !utf8.ValidString(text):
		return protocol.Errorf(protocol.CodeText, field, "holds bytes that are no UTF-8")
	case strings.ContainsRune(text, 0):
		return protocol.Errorf(protocol.CodeText, field, "holds a NUL byte")
	case len(text) > protocol.ReasonBytesMax:
		return protocol.Errorf(protocol.CodeTooLarge, field, "%s", protocol.OverSize(len(text), protocol.ReasonBytesMax))
	}
	return nil
}

// needWords is checkWords for words that must be given.
func needWords(field, text string) error {
	if strings.TrimSpace(text) == "" {
		return protocol.Errorf(protocol.CodeMissing, field, "is missing or empty; give it with --%s", field)
	}
	return checkWords(field, text)
}

func jsonText(value string) json.RawMessage {
	text, _ := json.Marshal(value) // a string always has a JSON form
	return text
}

// parseLevel reads "go" or "go:0.8": a capability and how well.
func parseLevel(flag, text string) (id string, level float64, given bool, err error) {
	id, number, given := strings.Cut(text, ":")
	if !given {
		return id, 0, false, nil
	}
	level, err = strconv.ParseFloat(number, 64)
	if err != nil {
		return "", 0, false, usagef("%s %q: write NAME or NAME:0.8", flag, text)
	}
	return id, level, true, nil
}

func parseCapabilities(flag string, texts []string) ([]protocol.Capability, error) {
	var list []protocol.Capability
	for _, text := range texts {
		id, level, given, err := parseLevel(flag, text)
		if err != nil {
			return nil, err
		}
		if !given {
			level = 1
		}
		list = append(list, protocol.Capability{ID: id, Proficiency: level})
	}
	return list, nil
}

// durationValue is a flag that is a duration, days included.
type durationValue[T ~int64] struct {
	to     *T
	unit   time.Duration
	signed bool // a negative one is refused later, by its field
}

func (v durationValue[T]) String() string {
	if v.to == nil || *v.to == 0 {
		return ""
	}
	return explain.Duration(time.Duration(*v.to) * v.unit)
}

func (v durationValue[T]) Type() string { return "duration" }

func (v durationValue[T]) Set(text string) error {
	d, err := parseDuration(text)
	if err != nil {
		return err
	}
	if d < 0 && !v.signed {
		return fmt.Errorf("%q is negative", text)
	}
	*v.to = T(d / v.unit)
	return nil
}

// orNew returns the pointer in a field, to a new value if the field was nil.
func orNew[T any](field **T) *T {
	if *field == nil {
		*field = new(T)
	}
	return *field
}
