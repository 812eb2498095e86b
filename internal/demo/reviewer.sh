#!/bin/sh
# An agent in shell, started by: handoff work --agent reviewer -- sh reviewer.sh DIR
package=$(cat)

case $package in
*'"type":"prose"'*) ;;
*) # 69 refuses; the file says why, and who fits better.
	cat >"$HANDOFF_ACK_FILE" <<-ACK
	{"status":"rejected","reason":"I read prose, and this is code","reason_code":"capability_mismatch","suggested_alternative":"inspector"}
	ACK
	exit 69 ;;
esac

report=$1/handoff-review.md
if [ "$HANDOFF_ATTEMPT" -lt 2 ]; then # for the show: the first attempt fails
	echo "my glasses are not here yet" >&2
	echo '{"retry_after_ms":1000}' >"$HANDOFF_ACK_FILE"
	exit 75 # not now; the file says from when on
fi

words=$(wc -w <"$report" | tr -d ' ')
sections=$(grep -c '^## ' "$report")
blank=$(grep -c '[[:space:]]$' "$report")
echo "{\"status\":\"success\",\"summary\":\"$words words in $sections sections, $blank lines with blanks at their end\",\"body\":{\"words\":$words,\"sections\":$sections,\"trailing_blanks\":$blank}}"
