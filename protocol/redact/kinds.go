package redact

// secretKind is one kind of secret that is known by its form.
type secretKind struct {
	name string
	// words begin each secret of the kind, three bytes or more each. A word that begins with
	// a letter or a digit stands at the beginning of a word in the text.
	words []string
	// rest is what follows the word. What a group called secret matches is the secret, else
	// all of it is, from the beginning of the word on. It begins with a character.
	rest string
	// anyCase says that upper and lower case of the words are the same.
	anyCase bool
	// back is how many letters and digits stand before the word at least; they belong to the
	// secret as well.
	back int
	// guard, if there is one, must hold of what follows the word before rest is tried. For
	// words that stand in many texts.
	guard func(rest []byte) bool
}

// secretKinds are the secrets that are known by their form, the closer form of two first. The
// reference is the list of gitleaks; the docs list all (docs/operations/redaction.md).
var secretKinds = []secretKind{
	// Clouds and where programs run.
	{name: "aws-access-key-id", words: []string{"AKIA", "ASIA", "ABIA", "ACCA"}, rest: `[A-Z0-9]{16}\b`},
	{name: "aws-bedrock-key", words: []string{"ABSK"}, rest: `[A-Za-z0-9+/]{100,}={0,2}`},
	{name: "alibaba-access-key-id", words: []string{"LTAI"}, rest: `[A-Za-z0-9]{16,30}\b`},
	{name: "azure-client-secret", words: []string{"0Q~", "1Q~", "2Q~", "3Q~", "4Q~", "5Q~", "6Q~", "7Q~", "8Q~", "9Q~"}, rest: `[A-Za-z0-9_~.-]{31,}`, back: 3},
	{name: "google-api-key", words: []string{"AIza"}, rest: `[A-Za-z0-9_-]{35,}`},
	{name: "google-client-secret", words: []string{"GOCSPX-"}, rest: `[A-Za-z0-9_-]{28,}`},
	{name: "google-access-token", words: []string{"ya29."}, rest: `[A-Za-z0-9._-]{20,}`},
	{name: "google-refresh-token", words: []string{"1//0"}, rest: `[A-Za-z0-9_-]{30,}`},
	{name: "yandex-api-key", words: []string{"AQVN"}, rest: `[A-Za-z0-9_-]{35,}`},
	{name: "digitalocean-token", words: []string{"dop_v1_", "doo_v1_", "dor_v1_"}, rest: `[a-f0-9]{64}`},
	{name: "heroku-key", words: []string{"HRKU-"}, rest: `[A-Za-z0-9_-]{36,}`},
	{name: "fly-token", words: []string{"fo1_", "fm1_", "fm1a_", "fm1r_", "fm2_"}, rest: `[A-Za-z0-9+/=_-]{40,}`},
	{name: "cloudflare-origin-key", words: []string{"v1.0-"}, rest: `[a-f0-9]{24}-[a-f0-9]{146}`},
	{name: "scalingo-token", words: []string{"tk-us-"}, rest: `[A-Za-z0-9_-]{48,}`},
	{name: "databricks-token", words: []string{"dapi"}, rest: `[a-f0-9]{32}(?:-[0-9])?\b`},
	{name: "planetscale-token", words: []string{"pscale_tkn_", "pscale_pw_", "pscale_oauth_"}, rest: `[A-Za-z0-9_=.-]{32,}`},
	{name: "supabase-token", words: []string{"sbp_", "sb_secret_"}, rest: `[A-Za-z0-9_-]{30,}`},
	{name: "pinecone-key", words: []string{"pcsk_"}, rest: `[A-Za-z0-9_]{40,}`},
	{name: "openshift-token", words: []string{"sha256~"}, rest: `[A-Za-z0-9_-]{43,}`},
	// Source code, packages and builds.
	{name: "github-token", words: []string{"ghp_", "gho_", "ghu_", "ghs_", "ghr_"}, rest: `[A-Za-z0-9]{36,}`},
	{name: "github-fine-grained-token", words: []string{"github_pat_"}, rest: `[A-Za-z0-9_]{22,}`},
	{name: "gitlab-token", words: []string{"glpat-", "gldt-", "glrt-", "glptt-", "glcbt-", "gloas-", "glft-", "glimt-", "glagent-", "glsoat-", "glffct-", "GR1348941"},
		rest: `[A-Za-z0-9_=.-]{20,}`},
	{name: "atlassian-token", words: []string{"ATATT3", "ATCTT3", "ATBB"}, rest: `[A-Za-z0-9_=-]{28,}`},
	{name: "npm-token", words: []string{"npm_"}, rest: `[A-Za-z0-9]{36,}`},
	{name: "pypi-token", words: []string{"pypi-AgE"}, rest: `[A-Za-z0-9_-]{50,}`},
	{name: "rubygems-key", words: []string{"rubygems_"}, rest: `[a-f0-9]{48}`},
	{name: "nuget-key", words: []string{"oy2"}, rest: `[a-z0-9]{43}\b`},
	{name: "clojars-token", words: []string{"CLOJARS_"}, rest: `[a-z0-9]{60}`},
	{name: "docker-token", words: []string{"dckr_pat_", "dckr_oat_"}, rest: `[A-Za-z0-9_-]{20,}`},
	{name: "docker-registry-auth", words: []string{"auth"}, rest: `\\*"\s{0,3}:\s{0,3}\\*"(?P<secret>[A-Za-z0-9+/]{12,}={0,2})\\*"`},
	{name: "artifactory-key", words: []string{"AKCp", "cmVmd"}, rest: `[A-Za-z0-9]{59,}`},
	{name: "circleci-token", words: []string{"CCIPAT_", "CCIPRJ_"}, rest: `[A-Za-z0-9]{10,}_[a-f0-9]{40}`},
	{name: "buildkite-token", words: []string{"bkua_", "bkaj_"}, rest: `[a-f0-9]{40}`},
	{name: "octopus-key", words: []string{"API-"}, rest: `[A-Z0-9]{26}\b`},
	{name: "sonar-token", words: []string{"sqp_", "sqa_", "squ_"}, rest: `[a-f0-9]{40}`},
	{name: "sourcegraph-token", words: []string{"sgp_"}, rest: `(?:[a-fA-F0-9]{16}_|local_)?[a-fA-F0-9]{40}`},
	{name: "pulumi-token", words: []string{"pul-"}, rest: `[a-f0-9]{40}`},
	{name: "terraform-token", words: []string{".atlasv1."}, rest: `[A-Za-z0-9_=-]{60,}`, back: 14},
	{name: "prefect-key", words: []string{"pnu_"}, rest: `[A-Za-z0-9]{36,}`},
	{name: "infracost-key", words: []string{"ico-"}, rest: `[A-Za-z0-9]{32}\b`},
	{name: "postman-key", words: []string{"PMAK-"}, rest: `[a-f0-9]{24}-[a-f0-9]{34}`},
	// Models.
	{name: "anthropic-key", words: []string{"sk-ant-"}, rest: `[A-Za-z0-9_-]{20,}`},
	{name: "openai-key", words: []string{"sk-proj-", "sk-svcacct-", "sk-admin-", "sk-or-"}, rest: `[A-Za-z0-9_-]{20,}`},
	{name: "sk-key", words: []string{"sk-"}, rest: `[A-Za-z0-9_-]{0,40}?[A-Za-z0-9]{20,}`},
	{name: "huggingface-token", words: []string{"hf_", "api_org_"}, rest: `[A-Za-z0-9]{34,}`},
	{name: "replicate-token", words: []string{"r8_"}, rest: `[A-Za-z0-9]{37,}`},
	{name: "groq-key", words: []string{"gsk_"}, rest: `[A-Za-z0-9]{40,}`},
	{name: "xai-key", words: []string{"xai-"}, rest: `[A-Za-z0-9]{60,}`},
	{name: "perplexity-key", words: []string{"pplx-"}, rest: `[A-Za-z0-9]{40,}`},
	{name: "tavily-key", words: []string{"tvly-"}, rest: `(?:dev-|prod-)?[A-Za-z0-9]{20,}`},
	{name: "langsmith-key", words: []string{"lsv2_pt_", "lsv2_sk_"}, rest: `[A-Za-z0-9_]{32,}`},
	// Messages, mail and money.
	{name: "slack-token", words: []string{"xoxa-", "xoxb-", "xoxe-", "xoxe.", "xoxo-", "xoxp-", "xoxr-", "xoxs-"}, rest: `[A-Za-z0-9.-]{10,}`},
	{name: "slack-app-token", words: []string{"xapp-"}, rest: `[0-9]-[A-Za-z0-9-]{10,}`},
	{name: "slack-webhook", words: []string{"hooks.slack.com/services/", "hooks.slack.com/workflows/"}, rest: `(?P<secret>[A-Za-z0-9/]{20,})`},
	{name: "discord-webhook", words: []string{"discord.com/api/webhooks/", "discordapp.com/api/webhooks/"}, rest: `[0-9]{5,}/(?P<secret>[A-Za-z0-9_-]{30,})`},
	{name: "teams-webhook", words: []string{".webhook.office.com/webhookb2/"}, rest: `(?P<secret>[^\s"'<>\\]{30,})`},
	{name: "telegram-bot-token", words: []string{"0:AA", "1:AA", "2:AA", "3:AA", "4:AA", "5:AA", "6:AA", "7:AA", "8:AA", "9:AA"}, rest: `[A-Za-z0-9_-]{33,}`, back: 6},
	{name: "sendgrid-key", words: []string{"SG."}, rest: `[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}`},
	{name: "mailgun-key", words: []string{"key-"}, rest: `[a-f0-9]{32}\b`},
	{name: "mailchimp-key", words: []string{"-us"}, rest: `[0-9]{1,2}\b`, back: 32},
	{name: "brevo-key", words: []string{"xkeysib-", "xsmtpsib-"}, rest: `[a-f0-9]{64}-[A-Za-z0-9]{16}`},
	{name: "stripe-key", words: []string{"sk_live_", "sk_test_", "rk_live_", "rk_test_"}, rest: `[A-Za-z0-9]{16,}`},
	{name: "stripe-webhook-secret", words: []string{"whsec_"}, rest: `[A-Za-z0-9+/]{24,}=*`},
	{name: "square-token", words: []string{"sq0atp-", "sq0csp-"}, rest: `[A-Za-z0-9_-]{22,}`},
	{name: "shopify-token", words: []string{"shpat_", "shpca_", "shppa_", "shpss_"}, rest: `[a-fA-F0-9]{32}`},
	{name: "plaid-token", words: []string{"access-sandbox-", "access-development-", "access-production-"}, rest: `[a-f0-9-]{36}`},
	{name: "flutterwave-key", words: []string{"FLWSECK-", "FLWSECK_TEST-"}, rest: `[A-Za-z0-9-]{12,}`},
	{name: "easypost-key", words: []string{"EZAK", "EZTK"}, rest: `[A-Za-z0-9]{54}`},
	{name: "duffel-token", words: []string{"duffel_live_", "duffel_test_"}, rest: `[A-Za-z0-9_=-]{43,}`},
	{name: "shippo-token", words: []string{"shippo_live_", "shippo_test_"}, rest: `[a-f0-9]{40}`},
	// Tools of teams.
	{name: "notion-token", words: []string{"ntn_"}, rest: `[A-Za-z0-9]{40,}`},
	{name: "linear-key", words: []string{"lin_api_", "lin_oauth_"}, rest: `[A-Za-z0-9]{32,}`},
	{name: "airtable-token", words: []string{"pat"}, rest: `[A-Za-z0-9]{14}\.[a-f0-9]{64}`},
	{name: "figma-token", words: []string{"figd_", "figp_", "figo_"}, rest: `[A-Za-z0-9_-]{20,}`},
	{name: "typeform-token", words: []string{"tfp_"}, rest: `[A-Za-z0-9._=-]{40,}`},
	{name: "readme-key", words: []string{"rdme_"}, rest: `[a-z0-9]{70}`},
	{name: "contentful-token", words: []string{"CFPAT-"}, rest: `[A-Za-z0-9_-]{43,}`},
	{name: "dropbox-token", words: []string{"sl."}, rest: `[A-Za-z0-9_-]{100,}`},
	{name: "mapbox-secret-token", words: []string{"sk.eyJ"}, rest: `[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{16,}`},
	{name: "adobe-client-secret", words: []string{"p8e-"}, rest: `[A-Za-z0-9_-]{32,}`},
	{name: "grafana-token", words: []string{"glsa_", "glc_"}, rest: `[A-Za-z0-9_+/=-]{32,}`},
	{name: "new-relic-key", words: []string{"NRAK-", "NRJS-", "NRII-", "NRRA-"}, rest: `[A-Za-z0-9-]{19,}`},
	{name: "dynatrace-token", words: []string{"dt0c01.", "dt0s01."}, rest: `[A-Z0-9]{24}\.[A-Z0-9]{64}`},
	{name: "sentry-token", words: []string{"sntrys_", "sntryu_"}, rest: `[A-Za-z0-9+/=_-]{40,}`},
	{name: "posthog-key", words: []string{"phx_"}, rest: `[A-Za-z0-9]{40,}`},
	// Keepers of secrets, networks, and keys in files.
	{name: "vault-token", words: []string{"hvs.", "hvb.", "hvr."}, rest: `[A-Za-z0-9_-]{24,}`},
	{name: "doppler-token", words: []string{"dp.pt.", "dp.st.", "dp.ct.", "dp.sa.", "dp.scim.", "dp.audit."}, rest: `[A-Za-z0-9._-]{40,}`},
	{name: "1password-service-token", words: []string{"ops_eyJ"}, rest: `[A-Za-z0-9+/_-]{100,}={0,3}`},
	{name: "1password-secret-key", words: []string{"A3-"}, rest: `[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}\b`},
	{name: "tailscale-key", words: []string{"tskey-"}, rest: `[a-z]{2,12}-[A-Za-z0-9]{6,}-[A-Za-z0-9]{10,}`},
	{name: "age-key", words: []string{"AGE-SECRET-KEY-1"}, rest: `[A-Z0-9]{58}`},
	{name: "nats-creds", words: []string{"BEGIN USER NKEY SEED-----"}, rest: `(?:\s|\\[nr]){0,8}(?P<secret>S[A-Z2-7]{20,})`},
	{name: "nats-seed", words: []string{"SUA", "SAA", "SOA", "SNA", "SCA", "SXA"}, rest: `[A-P][A-Z2-7]{54}\b`},
	{name: "private-key", words: []string{"-----BEGIN "}, rest: `(?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----` +
		`(?:(?:[^-]|-[^-])*-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----|` +
		`(?:\s|\\[nr])*(?:[A-Za-z0-9+/=]{24,}(?:\s|\\[nr])*)+[A-Za-z0-9+/=]*)`}, // cut off
	{name: "putty-key", words: []string{"Private-Lines:"}, rest: `\s{0,3}[0-9]+(?P<secret>(?:(?:\s|\\[nr])+[A-Za-z0-9+/=]{20,})+)`},
	// Forms of many services.
	{name: "jwt", words: []string{"eyJ"}, rest: `[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}`},
	{name: "bearer", words: []string{"bearer"}, anyCase: true, rest: `\s{1,3}(?P<secret>(?i)[a-z._~+/-]{0,15}[0-9][a-z0-9._~+/-]{11,}=*|[a-z0-9._~+/-]{32,}=*)`},
	{name: "basic", words: []string{"authorization"}, anyCase: true, rest: `(?i)\W{1,5}basic\s{1,3}(?P<secret>[a-z0-9+/]{8,}=*)`},
	{name: "authorization", words: []string{"authorization"}, anyCase: true,
		rest: `["'\\]{0,4}\s{0,3}[:=]\s{0,3}["'\\]{0,4}(?:[A-Za-z][A-Za-z0-9-]{0,20}\s{1,3})?(?P<secret>[A-Za-z._~+/-]{0,15}[0-9][A-Za-z0-9._~+/-]{7,}=*)`},
	{name: "cookie", words: []string{"cookie"}, anyCase: true, rest: `["'\\]{0,4}:\s{0,3}["'\\]{0,4}(?P<secret>[A-Za-z0-9_.%-]{1,64}=[^\s"'\\][^"'\\\r\n]*)`},
	{name: "url-password", words: []string{"://"}, rest: `[^\s/:@"'<>?#]*:(?P<secret>[^\s/@"'<>]{3,})@`, guard: hasUser},
	{name: "url-signature", words: []string{"?token=", "&token=", "?sig=", "&sig=", "?signature=", "&signature=", "?x-amz-signature=", "&x-amz-signature=",
		"?x-amz-security-token=", "&x-amz-security-token=", "?code=", "&code="}, anyCase: true, rest: `(?P<secret>[A-Za-z0-9%+/_.=~-]{16,})`},
	{name: "netrc", words: []string{"machine "}, rest: `\S{1,255}\s{1,8}login\s{1,8}\S{1,255}\s{1,8}password\s{1,8}(?P<secret>\S+)`},
	{name: "curl-user", words: []string{"curl "}, rest: `(?:[^\s|;&]+[ ])*?(?:-u|--user)[ =]?["']?[^\s:"'$]{1,64}:(?P<secret>[^\s"'$]{3,})`},
	{name: "sshpass", words: []string{"sshpass -p"}, rest: `\s{0,3}["']?(?P<secret>[^\s"'$]{3,})`},
	{name: "crypt-hash", words: []string{"$2a$", "$2b$", "$2y$"}, rest: `[0-9]{2}\$[./A-Za-z0-9]{53}`},
	{name: "crypt-hash", words: []string{"$1$", "$5$", "$6$"}, rest: `(?:rounds=[0-9]+\$)?[./A-Za-z0-9]{1,16}\$[./A-Za-z0-9]{22,}`},
	{name: "crypt-hash", words: []string{"$argon2id$", "$argon2i$", "$y$j"}, rest: `[A-Za-z0-9./=,$+]{40,}`},
}

// hasUser tells whether the part of a URL behind :// may name a user.
func hasUser(rest []byte) bool {
	for i, c := range rest {
		switch {
		case c == '@':
			return i > 0
		case c == '/' || bareEnds[c] && c != '&' && c != ';' && c != ',' && (c < '(' || c > ')'):
			return false
		}
	}
	return false
}
