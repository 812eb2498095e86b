package redact

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// Forms of examples: # is a letter or a digit, ^ an upper-case letter, % a hexadecimal
// digit, ~ stays. The prefixes are cut in two so that no scanner takes them for real.
func hexes(n int) string  { return strings.Repeat("%", n) }
func uppers(n int) string { return strings.Repeat("^", n) }

// kindExamples has, for every kind, a text with « » around what must be redacted, and similar
// texts that must stay.
var kindExamples = []struct {
	kind, secret string
	near         []string
}{
	{"aws-access-key-id", "id «AK" + "IA" + uppers(16) + "» there", []string{"AKIA" + uppers(8), "SAKIA" + uppers(16), "AKIA is how they begin"}},
	{"aws-bedrock-key", "«AB" + "SK" + hashes(110) + "=»", []string{"ABSK" + hashes(20)}},
	{"alibaba-access-key-id", "«LT" + "AI" + hashes(20) + "»", []string{"LTAI" + hashes(8), "LTAI" + hashes(60)}},
	{"azure-client-secret", "is «ab18" + "Q~" + hashes(34) + "»", []string{"8Q~ is a word", "x8Q~" + hashes(34)}},
	{"google-api-key", "«AI" + "za" + hashes(35) + "»", []string{"AIza" + hashes(20)}},
	{"google-client-secret", "«GOC" + "SPX-" + hashes(28) + "»", []string{"GOCSPX-short"}},
	{"google-access-token", "«ya" + "29." + hashes(60) + "»", []string{"ya29.txt", "kenya29." + hashes(60)}},
	{"google-refresh-token", "«1/" + "/0" + hashes(60) + "»", []string{"1//0 is an error", "21//0" + hashes(60)}},
	{"yandex-api-key", "«AQ" + "VN" + hashes(36) + "»", []string{"AQVN" + hashes(10)}},
	{"digitalocean-token", "«dop" + "_v1_" + hexes(64) + "»", []string{"dop_v1_" + hexes(20)}},
	{"heroku-key", "«HRK" + "U-" + hashes(60) + "»", []string{"HRKU-short"}},
	{"fly-token", "«fm" + "2_" + hashes(60) + "»", []string{"fm2_parser", "xfm2_" + hashes(60)}},
	{"cloudflare-origin-key", "«v1" + ".0-" + hexes(24) + "-" + hexes(146) + "»", []string{"v1.0-" + hexes(24), "v1.0-rc1"}},
	{"scalingo-token", "«tk" + "-us-" + hashes(48) + "»", []string{"tk-us-east"}},
	{"databricks-token", "«da" + "pi" + hexes(32) + "-2»", []string{"dapi" + hexes(40), "dapi" + hexes(16)}},
	{"planetscale-token", "«psc" + "ale_tkn_" + hashes(43) + "»", []string{"pscale_tkn_short"}},
	{"supabase-token", "«sb" + "p_" + hexes(40) + "»", []string{"sbp_file"}},
	{"pinecone-key", "«pc" + "sk_" + hashes(5) + "_" + hashes(60) + "»", []string{"pcsk_9"}},
	{"openshift-token", "«sha" + "256~" + hashes(43) + "»", []string{"sha256:" + hexes(64), "sha256~short"}},
	{"github-token", "«gh" + "s_" + hashes(36) + "»", []string{"ghs_" + hashes(20), "xghs_" + hashes(36)}},
	{"github-fine-grained-token", "«git" + "hub_pat_" + hashes(22) + "_" + hashes(59) + "»", []string{"github_pat_short"}},
	{"gitlab-token", "«gl" + "rt-" + hashes(20) + "»", []string{"glpat-123", "glrt-x"}},
	{"atlassian-token", "«ATA" + "TT3" + hashes(180) + "=" + hexes(8) + "»", []string{"ATATT3 and no more"}},
	{"npm-token", "«np" + "m_" + hashes(36) + "»", []string{"npm_config_registry", "npm_lifecycle_event"}},
	{"pypi-token", "«py" + "pi-AgEIcHlwaS5vcmc" + hashes(60) + "»", []string{"pypi-AgEnt"}},
	{"rubygems-key", "«ruby" + "gems_" + hexes(48) + "»", []string{"rubygems_mirror"}},
	{"nuget-key", "«oy" + "2" + strings.Repeat("a1", 21) + "b»", []string{"oy2" + strings.Repeat("a1", 30), "oy2abc"}},
	{"clojars-token", "«CLO" + "JARS_" + strings.Repeat("a1", 30) + "»", []string{"CLOJARS_USER"}},
	{"docker-token", "«dck" + "r_pat_" + hashes(27) + "»", []string{"dckr_pat_x"}},
	{"docker-registry-auth", `{"auths":{"x":{"auth": "«` + hashes(24) + `==»"}}}`, []string{`"auth": "none"`, `"auth": "basic with a password"`}},
	{"artifactory-key", "«AK" + "Cp" + hashes(69) + "»", []string{"AKCp8"}},
	{"circleci-token", "«CCI" + "PAT_" + hashes(22) + "_" + hexes(40) + "»", []string{"CCIPAT_x_y"}},
	{"buildkite-token", "«bk" + "ua_" + hexes(40) + "»", []string{"bkua_" + hexes(10)}},
	{"octopus-key", "«AP" + "I-" + uppers(26) + "»", []string{"API-FIRST", "RAPI-" + uppers(26)}},
	{"sonar-token", "«sq" + "p_" + hexes(40) + "»", []string{"sqp_" + hexes(8)}},
	{"sourcegraph-token", "«sg" + "p_" + hexes(16) + "_" + hexes(40) + "»", []string{"sgp_x"}},
	{"pulumi-token", "«pu" + "l-" + hexes(40) + "»", []string{"pul-pit"}},
	{"terraform-token", "«" + hashes(14) + ".atl" + "asv1." + hashes(67) + "»", []string{"x.atlasv1." + hashes(67), hashes(14) + ".atlasv1.json"}},
	{"prefect-key", "«pn" + "u_" + hashes(36) + "»", []string{"pnu_x"}},
	{"infracost-key", "«ic" + "o-" + hashes(32) + "»", []string{"ico-home", "ico-" + hashes(40)}},
	{"postman-key", "«PM" + "AK-" + hexes(24) + "-" + hexes(34) + "»", []string{"PMAK-" + hexes(24)}},
	{"anthropic-key", "«sk" + "-ant-api03-" + hashes(93) + "AA»", []string{"sk-ant-hill"}},
	{"openai-key", "«sk" + "-proj-" + hashes(60) + "»", []string{"sk-proj-plan"}},
	{"sk-key", "«sk" + "-" + hashes(32) + "»", []string{"sk-learn", "risk-assessment-of-" + hashes(4), "task-" + hashes(32)}},
	{"huggingface-token", "«hf" + "_" + hashes(34) + "»", []string{"hf_hub_download", "hf_" + hashes(20)}},
	{"replicate-token", "«r8" + "_" + hashes(37) + "»", []string{"r8_unorm"}},
	{"groq-key", "«gs" + "k_" + hashes(52) + "»", []string{"gsk_x"}},
	{"xai-key", "«xa" + "i-" + hashes(80) + "»", []string{"xai-explainable"}},
	{"perplexity-key", "«pp" + "lx-" + hashes(48) + "»", []string{"pplx-70b-online"}},
	{"tavily-key", "«tv" + "ly-dev-" + hashes(32) + "»", []string{"tvly-search"}},
	{"langsmith-key", "«ls" + "v2_pt_" + hexes(32) + "_" + hexes(10) + "»", []string{"lsv2_pt_x"}},
	{"slack-token", "«xo" + "xb-" + "123456789012-" + hashes(24) + "»", []string{"xoxb-x", "xoxox"}},
	{"slack-app-token", "«xa" + "pp-1-A" + hashes(40) + "»", []string{"xapp-x"}},
	{"slack-webhook", "https://hooks.sl" + "ack.com/services/«T0000/B0000/" + hashes(24) + "»", []string{"hooks.slack.com/services/", "hooks.slack.com/services/T/B"}},
	{"discord-webhook", "https://dis" + "cord.com/api/webhooks/123456789012345678/«" + hashes(68) + "»", []string{"discord.com/api/webhooks/123456789012345678"}},
	{"teams-webhook", "https://x.webhook.off" + "ice.com/webhookb2/«" + hashes(36) + "@" + hashes(36) + "»", []string{"https://x.webhook.office.com/webhookb2/"}},
	{"telegram-bot-token", "bot «12345678" + "9:AA" + hashes(33) + "»", []string{"at 12:AA", "uses data:AA" + hashes(40)}},
	{"sendgrid-key", "«S" + "G." + hashes(22) + "." + hashes(43) + "»", []string{"SG.txt", "MSG." + hashes(22) + "." + hashes(43)}},
	{"mailgun-key", "«ke" + "y-" + hexes(32) + "»", []string{"key-value", "key-" + hexes(40), "monkey-" + hexes(32)}},
	{"mailchimp-key", "«" + hexes(32) + "-u" + "s12»", []string{"aws-us1", "-us1", hexes(32) + "-us1x"}},
	{"brevo-key", "«xk" + "eysib-" + hexes(64) + "-" + hashes(16) + "»", []string{"xkeysib-x"}},
	{"stripe-key", "«sk" + "_live_" + hashes(24) + "»", []string{"sk_live_x", "task_test_" + hashes(24)}},
	{"stripe-webhook-secret", "«wh" + "sec_" + hashes(32) + "»", []string{"whsec_x"}},
	{"square-token", "«sq" + "0atp-" + hashes(22) + "»", []string{"sq0atp-x"}},
	{"shopify-token", "«sh" + "pat_" + hexes(32) + "»", []string{"shpat_x"}},
	{"plaid-token", "«acc" + "ess-sandbox-6ba7b810-9dad-11d1-80b4-00c04fd430c8»", []string{"access-sandbox-mode", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"}},
	{"flutterwave-key", "«FLW" + "SECK_TEST-" + hashes(32) + "-X»", []string{"FLWSECK-x"}},
	{"easypost-key", "«EZ" + "AK" + hashes(54) + "»", []string{"EZAK" + hashes(9)}},
	{"duffel-token", "«duf" + "fel_test_" + hashes(43) + "»", []string{"duffel_test_x"}},
	{"shippo-token", "«ship" + "po_live_" + hexes(40) + "»", []string{"shippo_live_x"}},
	{"notion-token", "«nt" + "n_" + hashes(46) + "»", []string{"ntn_x"}},
	{"linear-key", "«lin" + "_api_" + hashes(40) + "»", []string{"lin_api_x"}},
	{"airtable-token", "«pa" + "t" + hashes(14) + "." + hexes(64) + "»", []string{"pattern", "patternmatching14.go", "spat" + hashes(14) + "." + hexes(64)}},
	{"figma-token", "«fi" + "gd_" + hashes(40) + "»", []string{"figd_x"}},
	{"typeform-token", "«tf" + "p_" + hashes(59) + "»", []string{"tfp_x"}},
	{"readme-key", "«rd" + "me_" + strings.Repeat("a1", 35) + "»", []string{"rdme_x"}},
	{"contentful-token", "«CF" + "PAT-" + hashes(43) + "»", []string{"CFPAT-x"}},
	{"dropbox-token", "«s" + "l." + hashes(140) + "»", []string{"sl.example.com", "url.sl." + hashes(9)}},
	{"mapbox-secret-token", "«sk" + ".eyJ" + hashes(60) + "." + hashes(22) + "»", []string{"sk.eyJ"}},
	{"adobe-client-secret", "«p8" + "e-" + hashes(32) + "»", []string{"p8e-x"}},
	{"grafana-token", "«gl" + "sa_" + hashes(32) + "_" + hexes(8) + "»", []string{"glsa_x", "glc_" + hashes(8)}},
	{"new-relic-key", "«NR" + "AK-" + hashes(27) + "»", []string{"NRAK-x"}},
	{"dynatrace-token", "«dt" + "0c01." + uppers(24) + "." + uppers(64) + "»", []string{"dt0c01." + uppers(24)}},
	{"sentry-token", "«snt" + "rys_" + hashes(60) + "»", []string{"sntrys_x"}},
	{"posthog-key", "«ph" + "x_" + hashes(43) + "»", []string{"phx_x"}},
	{"vault-token", "«hv" + "s." + hashes(90) + "»", []string{"hvs.md"}},
	{"doppler-token", "«dp" + ".pt." + hashes(43) + "»", []string{"dp.pt.x"}},
	{"1password-service-token", "«ops" + "_eyJ" + hashes(250) + "»", []string{"ops_eyJ" + hashes(9)}},
	{"1password-secret-key", "«A" + "3-" + uppers(6) + "-" + uppers(6) + strings.Repeat("-"+uppers(5), 4) + "»", []string{"A3-SIZED", "A3-" + uppers(6)}},
	{"tailscale-key", "«ts" + "key-auth-" + hashes(16) + "-" + hashes(32) + "»", []string{"tskey-auth"}},
	{"age-key", "«AGE" + "-SECRET-KEY-1" + uppers(58) + "»", []string{"age-secret-key", "AGE-SECRET-KEY-1" + uppers(9)}},
	{"nats-seed", "seed «SU" + "A" + strings.Repeat("M", 55) + "»", []string{"SUA" + uppers(20), "UAB" + strings.Repeat("M", 53), "USUA" + strings.Repeat("M", 55)}},
	{"nats-creds", "-----BEGIN NATS USER JWT-----\n«ey" + "J" + hashes(40) + ".ey" + "J" + hashes(80) + "." + hashes(80) + "»\n------END NATS USER JWT------\n\n" +
		"-----BEGIN USER NKEY SEED-----\n«SU" + "AM" + uppers(30) + "»\n------END USER NKEY SEED------", []string{"-----BEGIN USER NKEY SEED-----\n<seed>"}},
	{"private-key", "«-----BEGIN OPENSSH PRIV" + "ATE KEY-----\n" + hashes(64) + "\n-----END OPENSSH PRIV" + "ATE KEY-----»", []string{
		"-----BEGIN CERTIFICATE-----\n" + hashes(64) + "\n-----END CERTIFICATE-----", "-----BEGIN PUBLIC KEY-----\n" + hashes(64)}},
	{"putty-key", "Private-Li" + "nes: 2«\n" + hashes(64) + "\n" + hashes(64) + "»\nPrivate-MAC: x", []string{"Private-Lines: 1"}},
	{"jwt", "«ey" + "J" + hashes(20) + ".ey" + "J" + hashes(40) + "." + hashes(43) + "»", []string{"eyJ" + hashes(20) + "." + hashes(40)}},
	{"bearer", "Authorization: Bearer «" + hashes(12) + "1" + hashes(20) + "»", []string{"Authorization: Bearer <token>", "the bearer of good news"}},
	{"basic", "Authorization: Basic «" + hashes(20) + "==»", []string{"authorization by basic means"}},
	{"authorization", "Authorization: Token «a1" + hashes(20) + "»", []string{"Authorization: required for all requests", "authorization: none"}},
	{"cookie", "Set-Cookie: «sid=" + hashes(20) + "; Path=/»", []string{"Cookie: the jar is empty", "cookie = http.Cookie{}"}},
	{"url-password", "amqps://app:«hunter2»@db:5671/x", []string{"https://example.com:8080/a@b", "ssh://git@example.com/x", "http://localhost:4222 and a@b"}},
	{"url-signature", "https://x.example/?sv=1&sig=«" + hashes(30) + "%3D»", []string{"?token=short&page=2", "?code=404"}},
	{"netrc", "machine db.example login app password «swordfish»", []string{"machine learning login page"}},
	{"curl-user", "curl -s -u app:«hunter2» https://x.example", []string{"docker run -u 1000:1000 x", "curl -u $USER:$PASS https://x.example", "curl https://x.example:8080/a"}},
	{"sshpass", "sshpass -p «hunter2» ssh db", []string{"sshpass -p $PASS ssh db"}},
	{"crypt-hash", "root:«$2" + "y$10$" + hashes(53) + "»:0", []string{"it costs $2a$ or more", "$1$ off"}},
}

// nameExamples are values that are secrets because of their names, by notation.
var nameExamples = []struct {
	how, secret string
	near        []string
}{
	{"JSON", `{"db": {"password": «12345», "port": 5432}}`, []string{`{"password": null}`, `{"max_tokens": 4096}`}},
	{"JSON text", `{"password": "«correct horse»"}`, []string{`{"password": ""}`, `{"password": "string"}`, `{"tokens": ["a1b2c3d4e5f6"]}`}},
	{"JSON list", `{"passwords": «["a", "b"]», "n": 1}`, []string{`{"words": ["a", "b"]}`}},
	{"JSON object", `{"password": «{"x": "y]}"}», "n": {}}`, []string{`{"pass": {"x": "y"}}`}},
	{"JSON in JSON", `{\"client_secret\": \"«swordfish»\", \"n\": 1}`, nil},
	{"YAML", "db:\n  password: «swordfish»\n  port: 5432", []string{"db:\n  password: required\n", "password: String"}},
	{"YAML list", "- apiKey: «swordfish»\n", nil},
	{"INI", "[db]\npassword = «swordfish»\n", []string{"[db]\nuser = swordfish\n"}},
	{"environment", "export DB_PASSWORD=«swordfish» STRIPE_KEY=«swordfish»", []string{"SORT_KEY=created", "PASSWORD=$DB_PASSWORD", "PWD=/home/x"}},
	{"header", "X-Api-Key: «a1b2c3d4e5»", []string{"X-Api-Key: required"}},
	{"query", "https://x.example/?user=a&password=«swordfish»&n=1", []string{"https://x.example/?q=password"}},
	{"connection string", "Server=db;User=a;Pwd=«swordfish»;", nil},
	{"storage account", "AccountName=a;AccountKey=«" + hashes(80) + "==»;EndpointSuffix=x", nil},
	{"flag", "tool --password «hunter2» --verbose --api-key=«swordfish»", []string{"use --password to set it", "--token TOKEN", "--password-file x9"}},
	{"XML", "<password>«swordfish»</password>", []string{"<password>string</password>", "<password/>", "a <password> b"}},
	{"code", `conn(user="a", password="«swordfish»")`, []string{"conn(password=password)", "password = get_password()", "token = next(tokens)", "password == x1234"}},
	{"typed", `apiKey: string = "«swordfish»"`, []string{"apiKey: string;"}},
	{"index", `config["secret_key"] = "«swordfish»"`, []string{`os.environ["DB_PASSWORD"]`}},
	{"token", "token: «a1b2c3d4e5f6»", []string{"token count: 5", "token: 17", "next_page_token: a1b2c3d4e5f6", "Token: 3.5k of 8k used", "tokens: 5420"}},
	{"two words", "my API key: «a1b2c3d4»", []string{"the key: a1b2c3d4e5f6", "public key: a1b2c3d4e5f6"}},
	{"private key", "PrivateKey = «" + hashes(20) + "1a2b3c" + hashes(17) + "=»", []string{"PrivateKey: testRSA2048PrivateKey", "hs.earlySecret = tls13.NewEarlySecret(hs.suite, psk)"}},
	{"in what leads to another", "git clone https://«gh" + "p_" + hashes(36) + "»:«x-oauth»@x.example", nil},
	{"in what leads to another", "curl -H 'authorization: bearer «abc123def456ghi789»' -u app:«hunter2» https://x.example", nil},
	{"prose", "The password is set by password: «hunter2.»", []string{"the password must have 8 characters", "Forgot your password? Enter it."}},
}

// common contains no secret.
var common = []string{"6ba7b810-9dad-11d1-80b4-00c04fd430c8", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", "sha256:" + strings.Repeat("9f86d081", 8),
	"JIRA-1234 and #4711", "commit 9f86d08", "2026-01-31T12:00:00.123456Z"}

// image is an image in JSON.
func image() string {
	return "data:image/png;base64,iVBORw0KGgo" + strings.ReplaceAll(fill(hashes(40<<10)), "7", "/")
}

func TestKinds(t *testing.T) {
	r := testRedactor(t)
	page, err := os.ReadFile("../../docs/operations/redaction.md")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, k := range secretKinds {
		if !slices.Contains(names, k.name) {
			names = append(names, k.name)
		}
	}
	if len(names) < 60 {
		t.Errorf("there are %d kinds", len(names))
	}
	for _, name := range names {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/operations/redaction.md has no %s", name)
		}
		found := 0
		for _, e := range kindExamples {
			if e.kind == name {
				found++
				checkExample(t, r, name, e.secret, e.near)
			}
		}
		if found != 1 {
			t.Errorf("%s has %d examples", name, found)
		}
	}
	for _, e := range nameExamples {
		checkExample(t, r, e.how, e.secret, e.near)
	}
	checkExample(t, r, "common", "", append(common, image()))
}

func checkExample(t *testing.T, r *Redactor, name, form string, near []string) {
	t.Helper()
	text, want := "", ""
	for i, part := range strings.FieldsFunc(" "+fill(form), func(c rune) bool { return c == '«' || c == '»' }) {
		text += part
		if i%2 == 1 {
			part = Marker
		}
		want += part
	}
	if got, err := r.Text(t.Context(), text); got != want || err != nil {
		t.Errorf("%s: %q became\n%q, not\n%q", name, text, got, want)
	} else if again, _ := r.Text(t.Context(), got); again != got {
		t.Errorf("%s: redacted twice it is %q", name, again)
	}
	for _, text := range near {
		text = fill(text)
		if got, err := r.Text(t.Context(), text); got != text || err != nil {
			t.Errorf("%s: %.200q is no secret, and became %.200q", name, text, got)
		}
	}
}

// TestKeywords checks that keywords have three bytes at least, and that a keyword of two kinds is
// tried in the order of the list.
func TestKeywords(t *testing.T) {
	for _, k := range secretKinds {
		for _, word := range k.keywords {
			if len(word) < keywordBytesMin || k.anyCase && word != strings.ToLower(word) {
				t.Errorf("%s: %q", k.name, word)
			}
		}
	}
	for _, word := range nameKeywords {
		if len(word) < keywordBytesMin || word != strings.ToLower(word) {
			t.Errorf("%q", word)
		}
	}
	for _, list := range [][]string{certainNames, likelyNames} {
		for _, name := range list {
			if !slices.ContainsFunc(nameKeywords, func(word string) bool { return strings.Contains(name, word) }) {
				t.Errorf("%s contains no keyword of a name", name)
			}
		}
	}
	for name, want := range map[string]confidence{"DB_PASSWORD": certainSecret, "dbPassword2": certainSecret, "password_confirmation": certainSecret, "client_secret": certainSecret, "clientSecret": certainSecret,
		"sharedSecret": likelySecret, "token": likelySecret, "access-token": certainSecret, "tokenizer": noSecret, "token_count": noSecret, "nextPageToken": noSecret, "monkey": noSecret,
		"secretary": noSecret, strings.Repeat("x", 100) + "password": certainSecret, "": noSecret, "2": noSecret, "value": noSecret} {
		if got := confidenceOf([]byte(name)); got != want {
			t.Errorf("%s is %d, not %d", name, got, want)
		}
	}
	fmt.Fprintln(t.Output(), len(allKeywords()), "words")
}

func allKeywords() (all []string) {
	table, _ := builtinKeywords()
	for _, bucket := range table.buckets {
		for _, w := range bucket {
			all = append(all, w.text)
		}
	}
	return all
}
