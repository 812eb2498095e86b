package redact

// secretKind is one kind of secret that is found by its form.
type secretKind struct {
	name string
	// keywords begin each secret of the kind, three bytes or more each. A keyword that begins with
	// a letter or a digit must be the start of a word in the text.
	keywords []string
	// suffix is the expression for the text after the keyword; it matches one character at least. The
	// secret is its group named secret, or everything from the start of the keyword.
	suffix string
	// anyCase ignores the case of the keywords.
	anyCase bool
	// prefixMin is how many letters and digits precede the keyword at least; they belong to the
	// secret.
	prefixMin int
	// guard, if set, must accept the text behind the keyword before suffix is tried. It is for
	// keywords that occur in many texts.
	guard func(rest []byte) bool
}

// secretKinds are the kinds of secrets, of two kinds the more specific first. The reference is the
// list of gitleaks; docs/operations/redaction.md lists all.
var secretKinds = []secretKind{
	// Clouds and hosting.
	{name: "aws-access-key-id", keywords: []string{"AKIA", "ASIA", "ABIA", "ACCA"}, suffix: `[A-Z0-9]{16}\b`},
	{name: "aws-bedrock-key", keywords: []string{"ABSK"}, suffix: `[A-Za-z0-9+/]{100,}={0,2}`},
	{name: "alibaba-access-key-id", keywords: []string{"LTAI"}, suffix: `[A-Za-z0-9]{16,30}\b`},
	{name: "azure-client-secret", keywords: []string{"0Q~", "1Q~", "2Q~", "3Q~", "4Q~", "5Q~", "6Q~", "7Q~", "8Q~", "9Q~"}, suffix: `[A-Za-z0-9_~.-]{31,}`, prefixMin: 3},
	{name: "google-api-key", keywords: []string{"AIza"}, suffix: `[A-Za-z0-9_-]{35,}`},
	{name: "google-client-secret", keywords: []string{"GOCSPX-"}, suffix: `[A-Za-z0-9_-]{28,}`},
	{name: "google-access-token", keywords: []string{"ya29."}, suffix: `[A-Za-z0-9._-]{20,}`},
	{name: "google-refresh-token", keywords: []string{"1//0"}, suffix: `[A-Za-z0-9_-]{30,}`},
	{name: "yandex-api-key", keywords: []string{"AQVN"}, suffix: `[A-Za-z0-9_-]{35,}`},
	{name: "digitalocean-token", keywords: []string{"dop_v1_", "doo_v1_", "dor_v1_"}, suffix: `[a-f0-9]{64}`},
	{name: "heroku-key", keywords: []string{"HRKU-"}, suffix: `[A-Za-z0-9_-]{36,}`},
	{name: "fly-token", keywords: []string{"fo1_", "fm1_", "fm1a_", "fm1r_", "fm2_"}, suffix: `[A-Za-z0-9+/=_-]{40,}`},
	{name: "cloudflare-origin-key", keywords: []string{"v1.0-"}, suffix: `[a-f0-9]{24}-[a-f0-9]{146}`},
	{name: "scalingo-token", keywords: []string{"tk-us-"}, suffix: `[A-Za-z0-9_-]{48,}`},
	{name: "databricks-token", keywords: []string{"dapi"}, suffix: `[a-f0-9]{32}(?:-[0-9])?\b`},
	{name: "planetscale-token", keywords: []string{"pscale_tkn_", "pscale_pw_", "pscale_oauth_"}, suffix: `[A-Za-z0-9_=.-]{32,}`},
	{name: "supabase-token", keywords: []string{"sbp_", "sb_secret_"}, suffix: `[A-Za-z0-9_-]{30,}`},
	{name: "pinecone-key", keywords: []string{"pcsk_"}, suffix: `[A-Za-z0-9_]{40,}`},
	{name: "openshift-token", keywords: []string{"sha256~"}, suffix: `[A-Za-z0-9_-]{43,}`},
	// Source code, packages and CI.
	{name: "github-token", keywords: []string{"ghp_", "gho_", "ghu_", "ghs_", "ghr_"}, suffix: `[A-Za-z0-9]{36,}`},
	{name: "github-fine-grained-token", keywords: []string{"github_pat_"}, suffix: `[A-Za-z0-9_]{22,}`},
	{name: "gitlab-token", keywords: []string{"glpat-", "gldt-", "glrt-", "glptt-", "glcbt-", "gloas-", "glft-", "glimt-", "glagent-", "glsoat-", "glffct-", "GR1348941"},
		suffix: `[A-Za-z0-9_=.-]{20,}`},
	{name: "atlassian-token", keywords: []string{"ATATT3", "ATCTT3", "ATBB"}, suffix: `[A-Za-z0-9_=-]{28,}`},
	{name: "npm-token", keywords: []string{"npm_"}, suffix: `[A-Za-z0-9]{36,}`},
	{name: "pypi-token", keywords: []string{"pypi-AgE"}, suffix: `[A-Za-z0-9_-]{50,}`},
	{name: "rubygems-key", keywords: []string{"rubygems_"}, suffix: `[a-f0-9]{48}`},
	{name: "nuget-key", keywords: []string{"oy2"}, suffix: `[a-z0-9]{43}\b`},
	{name: "clojars-token", keywords: []string{"CLOJARS_"}, suffix: `[a-z0-9]{60}`},
	{name: "docker-token", keywords: []string{"dckr_pat_", "dckr_oat_"}, suffix: `[A-Za-z0-9_-]{20,}`},
	{name: "docker-registry-auth", keywords: []string{"auth"}, suffix: `\\*"\s{0,3}:\s{0,3}\\*"(?P<secret>[A-Za-z0-9+/]{12,}={0,2})\\*"`},
	{name: "artifactory-key", keywords: []string{"AKCp", "cmVmd"}, suffix: `[A-Za-z0-9]{59,}`},
	{name: "circleci-token", keywords: []string{"CCIPAT_", "CCIPRJ_"}, suffix: `[A-Za-z0-9]{10,}_[a-f0-9]{40}`},
	{name: "buildkite-token", keywords: []string{"bkua_", "bkaj_"}, suffix: `[a-f0-9]{40}`},
	{name: "octopus-key", keywords: []string{"API-"}, suffix: `[A-Z0-9]{26}\b`},
	{name: "sonar-token", keywords: []string{"sqp_", "sqa_", "squ_"}, suffix: `[a-f0-9]{40}`},
	{name: "sourcegraph-token", keywords: []string{"sgp_"}, suffix: `(?:[a-fA-F0-9]{16}_|local_)?[a-fA-F0-9]{40}`},
	{name: "pulumi-token", keywords: []string{"pul-"}, suffix: `[a-f0-9]{40}`},
	{name: "terraform-token", keywords: []string{".atlasv1."}, suffix: `[A-Za-z0-9_=-]{60,}`, prefixMin: 14},
	{name: "prefect-key", keywords: []string{"pnu_"}, suffix: `[A-Za-z0-9]{36,}`},
	{name: "infracost-key", keywords: []string{"ico-"}, suffix: `[A-Za-z0-9]{32}\b`},
	{name: "postman-key", keywords: []string{"PMAK-"}, suffix: `[a-f0-9]{24}-[a-f0-9]{34}`},
	// Language models.
	{name: "anthropic-key", keywords: []string{"sk-ant-"}, suffix: `[A-Za-z0-9_-]{20,}`},
	{name: "openai-key", keywords: []string{"sk-proj-", "sk-svcacct-", "sk-admin-", "sk-or-"}, suffix: `[A-Za-z0-9_-]{20,}`},
	{name: "sk-key", keywords: []string{"sk-"}, suffix: `[A-Za-z0-9_-]{0,40}?[A-Za-z0-9]{20,}`},
	{name: "huggingface-token", keywords: []string{"hf_", "api_org_"}, suffix: `[A-Za-z0-9]{34,}`},
	{name: "replicate-token", keywords: []string{"r8_"}, suffix: `[A-Za-z0-9]{37,}`},
	{name: "groq-key", keywords: []string{"gsk_"}, suffix: `[A-Za-z0-9]{40,}`},
	{name: "xai-key", keywords: []string{"xai-"}, suffix: `[A-Za-z0-9]{60,}`},
	{name: "perplexity-key", keywords: []string{"pplx-"}, suffix: `[A-Za-z0-9]{40,}`},
	{name: "tavily-key", keywords: []string{"tvly-"}, suffix: `(?:dev-|prod-)?[A-Za-z0-9]{20,}`},
	{name: "langsmith-key", keywords: []string{"lsv2_pt_", "lsv2_sk_"}, suffix: `[A-Za-z0-9_]{32,}`},
	// Messaging, mail and payments.
	{name: "slack-token", keywords: []string{"xoxa-", "xoxb-", "xoxe-", "xoxe.", "xoxo-", "xoxp-", "xoxr-", "xoxs-"}, suffix: `[A-Za-z0-9.-]{10,}`},
	{name: "slack-app-token", keywords: []string{"xapp-"}, suffix: `[0-9]-[A-Za-z0-9-]{10,}`},
	{name: "slack-webhook", keywords: []string{"hooks.slack.com/services/", "hooks.slack.com/workflows/"}, suffix: `(?P<secret>[A-Za-z0-9/]{20,})`},
	{name: "discord-webhook", keywords: []string{"discord.com/api/webhooks/", "discordapp.com/api/webhooks/"}, suffix: `[0-9]{5,}/(?P<secret>[A-Za-z0-9_-]{30,})`},
	{name: "teams-webhook", keywords: []string{".webhook.office.com/webhookb2/"}, suffix: `(?P<secret>[^\s"'<>\\]{30,})`},
	{name: "telegram-bot-token", keywords: []string{"0:AA", "1:AA", "2:AA", "3:AA", "4:AA", "5:AA", "6:AA", "7:AA", "8:AA", "9:AA"}, suffix: `[A-Za-z0-9_-]{33,}`, prefixMin: 6},
	{name: "sendgrid-key", keywords: []string{"SG."}, suffix: `[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}`},
	{name: "mailgun-key", keywords: []string{"key-"}, suffix: `[a-f0-9]{32}\b`},
	{name: "mailchimp-key", keywords: []string{"-us"}, suffix: `[0-9]{1,2}\b`, prefixMin: 32},
	{name: "brevo-key", keywords: []string{"xkeysib-", "xsmtpsib-"}, suffix: `[a-f0-9]{64}-[A-Za-z0-9]{16}`},
	{name: "stripe-key", keywords: []string{"sk_live_", "sk_test_", "rk_live_", "rk_test_"}, suffix: `[A-Za-z0-9]{16,}`},
	{name: "stripe-webhook-secret", keywords: []string{"whsec_"}, suffix: `[A-Za-z0-9+/]{24,}=*`},
	{name: "square-token", keywords: []string{"sq0atp-", "sq0csp-"}, suffix: `[A-Za-z0-9_-]{22,}`},
	{name: "shopify-token", keywords: []string{"shpat_", "shpca_", "shppa_", "shpss_"}, suffix: `[a-fA-F0-9]{32}`},
	{name: "plaid-token", keywords: []string{"access-sandbox-", "access-development-", "access-production-"}, suffix: `[a-f0-9-]{36}`},
	{name: "flutterwave-key", keywords: []string{"FLWSECK-", "FLWSECK_TEST-"}, suffix: `[A-Za-z0-9-]{12,}`},
	{name: "easypost-key", keywords: []string{"EZAK", "EZTK"}, suffix: `[A-Za-z0-9]{54}`},
	{name: "duffel-token", keywords: []string{"duffel_live_", "duffel_test_"}, suffix: `[A-Za-z0-9_=-]{43,}`},
	{name: "shippo-token", keywords: []string{"shippo_live_", "shippo_test_"}, suffix: `[a-f0-9]{40}`},
	// Team tools.
	{name: "notion-token", keywords: []string{"ntn_"}, suffix: `[A-Za-z0-9]{40,}`},
	{name: "linear-key", keywords: []string{"lin_api_", "lin_oauth_"}, suffix: `[A-Za-z0-9]{32,}`},
	{name: "airtable-token", keywords: []string{"pat"}, suffix: `[A-Za-z0-9]{14}\.[a-f0-9]{64}`},
	{name: "figma-token", keywords: []string{"figd_", "figp_", "figo_"}, suffix: `[A-Za-z0-9_-]{20,}`},
	{name: "typeform-token", keywords: []string{"tfp_"}, suffix: `[A-Za-z0-9._=-]{40,}`},
	{name: "readme-key", keywords: []string{"rdme_"}, suffix: `[a-z0-9]{70}`},
	{name: "contentful-token", keywords: []string{"CFPAT-"}, suffix: `[A-Za-z0-9_-]{43,}`},
	{name: "dropbox-token", keywords: []string{"sl."}, suffix: `[A-Za-z0-9_-]{100,}`},
	{name: "mapbox-secret-token", keywords: []string{"sk.eyJ"}, suffix: `[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{16,}`},
	{name: "adobe-client-secret", keywords: []string{"p8e-"}, suffix: `[A-Za-z0-9_-]{32,}`},
	{name: "grafana-token", keywords: []string{"glsa_", "glc_"}, suffix: `[A-Za-z0-9_+/=-]{32,}`},
	{name: "new-relic-key", keywords: []string{"NRAK-", "NRJS-", "NRII-", "NRRA-"}, suffix: `[A-Za-z0-9-]{19,}`},
	{name: "dynatrace-token", keywords: []string{"dt0c01.", "dt0s01."}, suffix: `[A-Z0-9]{24}\.[A-Z0-9]{64}`},
	{name: "sentry-token", keywords: []string{"sntrys_", "sntryu_"}, suffix: `[A-Za-z0-9+/=_-]{40,}`},
	{name: "posthog-key", keywords: []string{"phx_"}, suffix: `[A-Za-z0-9]{40,}`},
	// Secret stores, networks, and key files.
	{name: "vault-token", keywords: []string{"hvs.", "hvb.", "hvr."}, suffix: `[A-Za-z0-9_-]{24,}`},
	{name: "doppler-token", keywords: []string{"dp.pt.", "dp.st.", "dp.ct.", "dp.sa.", "dp.scim.", "dp.audit."}, suffix: `[A-Za-z0-9._-]{40,}`},
	{name: "1password-service-token", keywords: []string{"ops_eyJ"}, suffix: `[A-Za-z0-9+/_-]{100,}={0,3}`},
	{name: "1password-secret-key", keywords: []string{"A3-"}, suffix: `[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}\b`},
	{name: "tailscale-key", keywords: []string{"tskey-"}, suffix: `[a-z]{2,12}-[A-Za-z0-9]{6,}-[A-Za-z0-9]{10,}`},
	{name: "age-key", keywords: []string{"AGE-SECRET-KEY-1"}, suffix: `[A-Z0-9]{58}`},
	{name: "nats-creds", keywords: []string{"BEGIN USER NKEY SEED-----"}, suffix: `(?:\s|\\[nr]){0,8}(?P<secret>S[A-Z2-7]{20,})`},
	{name: "nats-seed", keywords: []string{"SUA", "SAA", "SOA", "SNA", "SCA", "SXA"}, suffix: `[A-P][A-Z2-7]{54}\b`},
	{name: "private-key", keywords: []string{"-----BEGIN "}, suffix: `(?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----` +
		`(?:(?:[^-]|-[^-])*-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----|` +
		`(?:\s|\\[nr])*(?:[A-Za-z0-9+/=]{24,}(?:\s|\\[nr])*)+[A-Za-z0-9+/=]*)`}, // cut off
	{name: "putty-key", keywords: []string{"Private-Lines:"}, suffix: `\s{0,3}[0-9]+(?P<secret>(?:(?:\s|\\[nr])+[A-Za-z0-9+/=]{20,})+)`},
	// Formats of many services.
	{name: "jwt", keywords: []string{"eyJ"}, suffix: `[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}`},
	{name: "bearer", keywords: []string{"bearer"}, anyCase: true, suffix: `\s{1,3}(?P<secret>(?i)[a-z._~+/-]{0,15}[0-9][a-z0-9._~+/-]{11,}=*|[a-z0-9._~+/-]{32,}=*)`},
	{name: "basic", keywords: []string{"authorization"}, anyCase: true, suffix: `(?i)\W{1,5}basic\s{1,3}(?P<secret>[a-z0-9+/]{8,}=*)`},
	{name: "authorization", keywords: []string{"authorization"}, anyCase: true,
		suffix: `["'\\]{0,4}\s{0,3}[:=]\s{0,3}["'\\]{0,4}(?:[A-Za-z][A-Za-z0-9-]{0,20}\s{1,3})?(?P<secret>[A-Za-z._~+/-]{0,15}[0-9][A-Za-z0-9._~+/-]{7,}=*)`},
	{name: "cookie", keywords: []string{"cookie"}, anyCase: true, suffix: `["'\\]{0,4}:\s{0,3}["'\\]{0,4}(?P<secret>[A-Za-z0-9_.%-]{1,64}=[^\s"'\\][^"'\\\r\n]*)`},
	{name: "url-password", keywords: []string{"://"}, suffix: `[^\s/:@"'<>?#]*:(?P<secret>[^\s/@"'<>]{3,})@`, guard: hasUser},
	{name: "url-signature", keywords: []string{"?token=", "&token=", "?sig=", "&sig=", "?signature=", "&signature=", "?x-amz-signature=", "&x-amz-signature=",
		"?x-amz-security-token=", "&x-amz-security-token=", "?code=", "&code="}, anyCase: true, suffix: `(?P<secret>[A-Za-z0-9%+/_.=~-]{16,})`},
	{name: "netrc", keywords: []string{"machine "}, suffix: `\S{1,255}\s{1,8}login\s{1,8}\S{1,255}\s{1,8}password\s{1,8}(?P<secret>\S+)`},
	{name: "curl-user", keywords: []string{"curl "}, suffix: `(?:[^\s|;&]+[ ])*?(?:-u|--user)[ =]?["']?[^\s:"'$]{1,64}:(?P<secret>[^\s"'$]{3,})`},
	{name: "sshpass", keywords: []string{"sshpass -p"}, suffix: `\s{0,3}["']?(?P<secret>[^\s"'$]{3,})`},
	{name: "crypt-hash", keywords: []string{"$2a$", "$2b$", "$2y$"}, suffix: `[0-9]{2}\$[./A-Za-z0-9]{53}`},
	{name: "crypt-hash", keywords: []string{"$1$", "$5$", "$6$"}, suffix: `(?:rounds=[0-9]+\$)?[./A-Za-z0-9]{1,16}\$[./A-Za-z0-9]{22,}`},
	{name: "crypt-hash", keywords: []string{"$argon2id$", "$argon2i$", "$y$j"}, suffix: `[A-Za-z0-9./=,$+]{40,}`},
}

// hasUser reports whether the part of a URL behind :// may name a user.
func hasUser(rest []byte) bool {
	for i, c := range rest {
		switch {
		case c == '@':
			return i > 0
		case c == '/' || bareTerminators[c] && c != '&' && c != ';' && c != ',' && (c < '(' || c > ')'):
			return false
		}
	}
	return false
}
