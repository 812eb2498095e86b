package redact

import (
	"bytes"
	"slices"
	"strings"
)

// confidence is how sure a name is that its value is a secret.
type confidence int

const (
	noSecret confidence = iota
	// likelySecret is a name that texts use for other things as well: token, secret, private key.
	// In free data its value is a secret; in a text, only if it looks like one.
	likelySecret
	// certainSecret is a name such as password or api_key.
	certainSecret
)

// nameKeywords are the keywords of which every secret's name contains at least one.
var nameKeywords = []string{"passw", "passphrase", "passcode", "pwd", "secret", "token", "key", "credential", "cookie", "authorization", "connection", "connstr",
	"dsn", "jwt", "mnemonic", "phrase", "auths"}

// nameBytesMax is how much of the end of a name is read.
const nameBytesMax = 64

// The ends of secrets' names, normalised: lower case, without separators.
var (
	certainNames = []string{"password", "passwords", "passwd", "passphrase", "passphrases", "passcode", "passwort", "pwd", "apikey", "apikeys", "secretkey", "accesskey",
		"clientsecret", "appsecret", "accesstoken", "accesstokens", "authtoken", "authtokens", "refreshtoken", "sessiontoken", "securitytoken", "bearertoken",
		"apitoken", "apitokens", "bottoken", "idtoken", "accountkey", "storagekey", "masterkey", "signingkey", "encryptionkey", "connectionstring", "connstr",
		"keydata", "authkey"}
	likelyNames = []string{"token", "secret", "secrets", "privatekey", "privatekeys", "privkey", "sshkey", "credential", "credentials", "cookie", "cookies", "authorization", "jwt",
		"dsn", "sessionkey", "mnemonic", "seedphrase", "recoveryphrase", "hmackey", "deploykey", "auths"}
	// qualifiers may follow a name: password_confirmation, token_value, PASSWORD_2.
	qualifiers = []string{"value", "old", "new", "current", "confirm", "confirmation", "base64", "b64", "plaintext"}
	// harmlessNames end like secrets' names: tokens of pages and of language models.
	harmlessNames = []string{"nexttoken", "pagetoken", "continuationtoken", "cancellationtoken", "synctoken", "eostoken", "bostoken", "padtoken", "unktoken",
		"septoken", "masktoken", "clstoken", "stoptoken", "endtoken", "starttoken", "specialtoken", "firsttoken", "lasttoken", "nexttokens", "pertoken",
		"maxtoken", "mintoken", "inputtoken", "outputtoken", "publickeydata"}
	// harmlessKeyWords make a variable that ends in _KEY harmless: PRIMARY_KEY.
	harmlessKeyWords = []string{"public", "primary", "foreign", "sort", "partition", "cache", "idempotency", "unique", "group", "hash", "range", "routing"}
)

// confidenceOf returns how surely the name of a field or variable marks a secret, in any spelling:
// db_password, dbPassword, API-KEY, PASSWORD_2.
func confidenceOf(name []byte) confidence {
	var room [nameBytesMax]byte
	compact := normalizeName(room[:0], name)
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
		return noSecret
	case ends(certainNames), hasLastWord(name, "secret"):
		return certainSecret
	case ends(likelyNames):
		return likelySecret
	}
	return noSecret
}

// hasLastWord reports whether the last word of a name is word: client_secret, not sharedSecret.
func hasLastWord(name []byte, word string) bool {
	at := len(name) - len(word)
	return at >= 0 && hasPrefixFold(name[at:], word) && (at == 0 || name[at-1] == '_' || name[at-1] == '-')
}

// normalizeName appends the letters and digits of a name in lower case to compact, without digits
// at the end.
func normalizeName(compact, name []byte) []byte {
	for _, c := range name[max(0, len(name)-nameBytesMax):] {
		switch {
		case '0' <= c && c <= '9':
			compact = append(compact, c)
		case 'a' <= foldCase(c) && foldCase(c) <= 'z':
			compact = append(compact, foldCase(c))
		}
	}
	if bytes.HasSuffix(compact, []byte("base64")) || bytes.HasSuffix(compact, []byte("b64")) {
		return compact
	}
	return bytes.TrimRight(compact, "0123456789")
}

// isSecretVariable reports whether a name is that of an environment variable with a secret: upper
// case alone, and an end such as _KEY.
func isSecretVariable(name []byte) bool {
	for _, c := range name {
		if c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	if confidenceOf(name) != noSecret {
		return true
	}
	before, ok := strings.CutSuffix(string(name), "_KEY")
	return ok && !slices.ContainsFunc(harmlessKeyWords, func(word string) bool { return strings.HasSuffix(strings.ToLower(before), word) })
}
