// Keeps a view fresh, and adds keys. Without it all links and forms work.
const html = document.documentElement, base = html.dataset.base
const $ = (what, from = document) => from.querySelector(what), all = (what, from = document) => [...from.querySelectorAll(what)]

// The server shows times in the zone of this browser from the next view on.
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone
document.cookie = `handoff-zone=${zone}; path=${base || '/'}; max-age=31536000; samesite=lax`

// What a person is doing is never replaced.
const busy = (node) => node.matches('input:not([type=hidden]), textarea') && (node === document.activeElement || node.value !== node.defaultValue)

// sync makes a node like another one, and touches only what differs: focus, open details, what was
// typed and the place on the page stay.
function sync(now, next) {
  if (now.nodeType !== next.nodeType || now.nodeName !== next.nodeName || now.id !== next.id) return now.replaceWith(next.cloneNode(true))
  if (now.nodeType !== 1) { if (now.data !== next.data) now.data = next.data; return }
  if (now.isEqualNode(next) || busy(now) || now.name === 'key') return // a form keeps the key of its submission
  for (const { name, value } of [...next.attributes]) if (now.getAttribute(name) !== value) now.setAttribute(name, value)
  for (const { name } of [...now.attributes]) {
    if (!next.hasAttribute(name) && name !== 'open' && name !== 'hidden' && name !== 'class') now.removeAttribute(name)
  }
  const ids = new Map([...now.children].filter((c) => c.id).map((c) => [c.id, c]))
  let at = now.firstChild
  for (const child of [...next.childNodes]) {
    const known = child.id && ids.get(child.id)
    if (known) {
      if (known !== at) now.insertBefore(known, at); else at = at.nextSibling
      sync(known, child)
    } else if (at && !(at.id && at !== known) && at.nodeName === child.nodeName) {
      const here = at
      at = at.nextSibling
      sync(here, child)
    } else now.insertBefore(child.cloneNode(true), at)
  }
  while (at) {
    const gone = at
    at = at.nextSibling
    if (!typing(gone)) gone.remove()
  }
}
const typing = (node) => node.nodeType === 1 && (busy(node) || all('input, textarea', node).some(busy))

// Live: a hint says that something has changed, and the view is read again a moment later.
const live = $('#live')
let paused = false, due = 0, settled = 0, stream = null, reading = false, again = false
async function refresh() {
  if (paused || document.hidden || !live) return
  if (reading) { again = true; return }
  reading = true
  try {
    const url = new URL(location)
    url.searchParams.delete('did')
    const open = $('.card.open')
    if (open && html.dataset.page === 'inbox') url.searchParams.set('open', open.dataset.ticket)
    url.hash = ''
    const answer = await fetch(url, { headers: { 'Handoff-Refresh': '1' } })
    if (answer.status === 401) { say('Your session is over. What you typed is kept.'); stop(); return }
    if (!answer.ok) return
    const next = new DOMParser().parseFromString(await answer.text(), 'text/html')
    $('#toasts', next).replaceChildren(...$('#toasts').cloneNode(true).childNodes)
    sync($('main'), $('main', next))
    sync($('#count'), $('#count', next))
    document.title = next.title
    later()
    script()
  } catch { /* the next hint, or the next minute */ } finally {
    reading = false
    if (again) { again = false; soon() }
  }
}
function soon() {
  due ||= setTimeout(() => {
    due = 0
    refresh()
    clearTimeout(settled)
    settled = setTimeout(refresh, 2500) // viewers share figures of up to two seconds ago
  }, 250)
}
function start() {
  if (!live || stream || paused || document.hidden) return
  stream = new EventSource(`${base}/ui/events${html.dataset.ticket ? '?ticket=' + html.dataset.ticket : ''}`)
  stream.addEventListener('hint', soon)
  stream.addEventListener('open', () => show('live'))
  stream.addEventListener('error', () => show('connecting', true))
}
function stop() { stream?.close(); stream = null }
function show(words, off = false) {
  if (live.textContent !== words) live.textContent = words
  live.classList.toggle('off', off)
}
function pause() {
  paused = !paused
  if (paused) { stop(); show('paused', true) } else { start(); refresh() }
}
document.addEventListener('visibilitychange', () => { if (document.hidden) stop(); else { start(); refresh() } })
setInterval(refresh, 30000) // ages

// Toasts.
function say(words) {
  const p = document.createElement('p')
  p.className = 'toast'
  p.textContent = words
  $('#toasts').append(p)
  setTimeout(() => p.remove(), 8000)
}
if (new URL(location).searchParams.has('did')) { // going back does not say it again
  const url = new URL(location)
  for (const name of ['did', 'on', 'n']) url.searchParams.delete(name)
  history.replaceState(null, '', url)
}

// "Not now" sends nothing: the card is folded on this page alone.
const put = new Set()
function later() {
  for (const card of all('.card[data-ticket]')) card.hidden = put.has(card.dataset.ticket)
}

// Some buttons need the script.
function script() {
  html.classList.add('script')
  for (const b of all('[data-copy], [data-later]')) b.hidden = false
  if (live) live.hidden = false
}

document.addEventListener('click', async (event) => {
  const target = event.target.closest('[data-copy], [data-later], #live')
  if (!target) return
  if (target === live) return pause()
  event.preventDefault()
  if (target.dataset.copy) {
    await navigator.clipboard?.writeText(target.dataset.copy)
    const was = target.textContent
    target.textContent = 'copied'
    setTimeout(() => { target.textContent = was }, 1500)
    return
  }
  const card = target.closest('.card')
  put.add(card.dataset.ticket)
  later()
  say('Not decided. It still waits, and is here when you come again.')
  const next = all('[data-row]').find((row) => !row.hidden)
  $('[data-open]', next ?? document)?.focus()
})

// A form is sent once.
document.addEventListener('submit', (event) => {
  const form = event.target
  if (form.method !== 'post') return
  if (form.dataset.sent) return event.preventDefault()
  form.dataset.sent = '1'
  setTimeout(() => delete form.dataset.sent, 5000)
})

// Keys. They do nothing while a person types.
let before = ''
const rows = () => all('[data-row]').filter((row) => !row.hidden)
const chosen = () => $('[data-row].on') ?? document.activeElement?.closest?.('[data-row]')
function move(step) {
  const list = rows(), at = list.indexOf(chosen())
  const row = list[at < 0 ? (step > 0 ? 0 : list.length - 1) : Math.min(list.length - 1, Math.max(0, at + step))]
  if (!row) return
  for (const other of all('[data-row].on')) other.classList.remove('on')
  row.classList.add('on')
  row.scrollIntoView({ block: 'nearest' })
  const link = $('[data-open]', row) ?? row
  if (link === row) row.tabIndex = -1
  link.focus({ preventScroll: true })
}
function press(key) {
  const row = chosen()
  const button = (row && $(`[data-press="${key}"]`, row)) ?? (row && !row.matches('.open') && key !== 'c' && key !== '?' ? null : $(`main [data-press="${key}"], footer [data-press="${key}"]`))
  if (!button) { if (row && (key === 'a' || key === 'x')) $('[data-open]', row)?.click(); return }
  const fields = button.closest('form.fields')
  if (fields && $('textarea, input:not([type=hidden])', fields)) return $('textarea, input:not([type=hidden])', fields).focus()
  button.click()
  if (button.matches('summary')) $('input:not([type=hidden]), textarea, button', button.parentElement)?.focus()
}
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape') return document.activeElement?.blur()
  if (event.target.matches('input, textarea') || event.ctrlKey || event.metaKey || event.altKey) return
  const key = event.key, last = before
  before = key
  if (last === 'g') {
    const page = $(`[data-go="${key}"]`)
    if (page) { event.preventDefault(); page.click() }
  } else if (key === '/') {
    event.preventDefault()
    $('input[type=search]')?.focus()
  } else if (key === 'j' || key === 'k') move(key === 'j' ? 1 : -1)
  else if (key === 'p') pause()
  else if (['a', 'x', 'r', 'c', '?'].includes(key)) { event.preventDefault(); press(key) }
  else if (key === 'Enter' && event.target.matches('[data-row]')) $('[data-open]', event.target)?.click()
})

script()
start()
