# Prints accounts.conf with the rights for a ledger of n partitions:
#
#   awk -v n=4 -f partitions.awk accounts.conf > accounts-4.conf
#
# Each line with a stream or a subject that is divided is repeated for each further partition:
# HANDOFF_LEDGER_1 and handoff.ledger-1.* for the second one.

{ print }

!/^ *#/ && /HANDOFF_(LEDGER|WORK|TIMERS)|"handoff\.(ledger|work|timer|due)\./ {
  for (p = 1; p < n; p++) {
    line = $0
    for (i = split("LEDGER WORK TIMERS", names, " "); i > 0; i--)
      gsub("HANDOFF_" names[i], "&_" p, line)
    for (i = split("ledger work timer due", names, " "); i > 0; i--)
      gsub("handoff\\." names[i] "\\.", "handoff." names[i] "-" p ".", line)
    print line
  }
}
