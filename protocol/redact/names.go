package redact

import (
	"bytes"
	"slices"
	"strings"
)

// strength says how sure a name is that its value is a secret.
type strength int

const (
	harmless strength = iota
	// likely is a name that texts use for other things as well: token, secret, private key.
	// In a text its value is a secret if it looks like one, in free data always.
	likely
	// sure is a name such as password or api_key.
	sure
)

// nameWords stand in every name of a secret, as strengthOf knows them.
var nameWords = []string{"passw", "passphrase", "passcode", "pwd", "secret", "token", "key", "credential", "cookie", "authorization", "connection", "connstr",
	"dsn", "jwt", "mnemonic", "phrase", "auths"}

// nameBytesMax is how much of a name counts, from its end on.
const nameBytesMax = 64

// The ends of names of secrets, in lower case and without anything between their words.
var (
	sureNames = []string{"password", "passwords", "passwd", "passphrase", "passphrases", "passcode", "passwort", "pwd", "apikey", "apikeys", "secretkey", "accesskey",
		"clientsecret", "appsecret", "accesstoken", "accesstokens", "authtoken", "authtokens", "refreshtoken", "sessiontoken", "securitytoken", "bearertoken",
		"apitoken", "apitokens", "bottoken", "idtoken", "accountkey", "storagekey", "masterkey", "signingkey", "encryptionkey", "connectionstring", "connstr",
		"keydata", "authkey"}
	likelyNames = []string{"token", "secret", "secrets", "privatekey", "privatekeys", "privkey", "sshkey", "credential", "credentials", "cookie", "cookies", "authorization", "jwt",
		"dsn", "sessionkey", "mnemonic", "seedphrase", "recoveryphrase", "hmackey", "deploykey", "auths"}
	// qualifiers may follow: password_confirmation, token_value, PASSWORD_2.
	qualifiers = []string{"value", "old", "new", "current", "confirm", "confirmation", "base64", "b64", "plaintext"}
	// harmlessNames end like names of secrets. Those of tokens are of pages and of models.
	harmlessNames = []string{"nexttoken", "pagetoken", "continuationtoken", "cancellationtoken", "synctoken", "eostoken", "bostoken", "padtoken", "unktoken",
		"septoken", "masktoken", "clstoken", "stoptoken", "endtoken", "starttoken", "specialtoken", "firsttoken", "lasttoken", "nexttokens", "pertoken",
		"maxtoken", "mintoken", "inputtoken", "outputtoken", "publickeydata"}
	// environmentHarmless are variables that end in _KEY and hold no secret.
	environmentHarmless = []string{"public", "primary", "foreign", "sort", "partition", "cache", "idempotency", "unique", "group", "hash", "range", "routing"}
)

// strengthOf tells what the name of a field or of a variable says of its value, however
// its words are put together: db_password, dbPassword, API-KEY, PASSWORD_2.
func strengthOf(name []byte) strength {
	var room [nameBytesMax]byte
	compact := compactName(room[:0], name)
	for _, q := range qualifiers {
		if before, ok := bytes.CutSuffix(compact, []byte(q)); ok && len(before) > 0 {
			compact = before
			break
		}
	}
	ends := func(all []string) bool {
		return slices.ContainsFunc(all, func(end string) bool {
			return len(compact) >= len(end) && string(compact[len(compact)-len(end):]) == end
		})
	}
	switch {
	case ends(harmlessNames):
		return harmless
	case ends(sureNames), endsInWord(name, "secret"):
		return sure
	case ends(likelyNames):
		return likely
	}
	return harmless
}

// endsInWord tells whether the last word of a name is this one: client_secret, not sharedSecret.
func endsInWord(name []byte, word string) bool {
	at := len(name) - len(word)
	return at >= 0 && hasFolded(name[at:], word) && (at == 0 || name[at-1] == '_' || name[at-1] == '-')
}

// compactName appends the letters and digits of a name in lower case, without digits at its end.
func compactName(compact, name []byte) []byte {
	for _, c := range name[max(0, len(name)-nameBytesMax):] {
		switch {
		case '0' <= c && c <= '9':
			compact = append(compact, c)
		case 'a' <= fold(c) && fold(c) <= 'z':
			compact = append(compact, fold(c))
		}
	}
	if bytes.HasSuffix(compact, []byte("base64")) || bytes.HasSuffix(compact, []byte("b64")) {
		return compact
	}
	return bytes.TrimRight(compact, "0123456789")
}

// environmentKey tells whether a name is that of a variable of the environment that holds
// a secret: upper case alone, and an end such as _KEY.
func environmentKey(name []byte) bool {
	for _, c := range name {
		if c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	if strengthOf(name) != harmless {
		return true
	}
	before, ok := strings.CutSuffix(string(name), "_KEY")
	return ok && !slices.ContainsFunc(environmentHarmless, func(word string) bool { return strings.HasSuffix(strings.ToLower(before), word) })
}
