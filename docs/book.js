// The page's few moving parts: menu, theme, search. No library, no request.
const $ = (selector) => document.querySelector(selector)

// Menu (on narrow screens)
const menu = $("#menu"), nav = $("#nav")
const openMenu = (open) => { nav.classList.toggle("open", open); menu.setAttribute("aria-expanded", open) }
menu.onclick = () => openMenu(!nav.classList.contains("open"))
nav.onclick = (event) => { if (event.target.closest("a")) openMenu(false) }
const here = nav.querySelector("[aria-current]")
if (here && here.offsetTop > nav.clientHeight / 2) nav.scrollTop = here.offsetTop - nav.clientHeight / 3

// Theme: the system's, until the reader chooses
$("#theme").onclick = () => {
  const root = document.documentElement
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches
  root.dataset.theme = dark ? "light" : "dark"
  try { localStorage.theme = root.dataset.theme } catch (error) {}
}

// Search: every word must occur in a section; names and titles weigh more than text
const dialog = $("#search"), input = dialog.querySelector("input"), list = dialog.querySelector("ol")
const fold = (text) => text.toLowerCase().normalize("NFD").replace(/\p{M}/gu, "")
const escape = (text) => text.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c])
let folded = null

function find(query) {
  folded ||= BOOK.map((entry) => ({ ...entry, fs: fold(entry.s), fp: fold(entry.p), ft: fold(entry.t) }))
  const words = fold(query).split(/\s+/).filter(Boolean), hits = []
  if (!words.length) return []
  for (const entry of folded) {
    let score = 0
    for (const word of words) {
      const points = (entry.fs === word ? 40 : entry.fs.includes(word) ? 12 : 0) + (entry.fp.includes(word) ? 4 : 0)
        + Math.min(5, entry.ft.split(word).length - 1)
      if (!points) { score = 0; break }
      score += points
    }
    if (score) hits.push({ entry, score })
  }
  return hits.sort((a, b) => b.score - a.score).slice(0, 30).map((hit) => ({ ...hit.entry, words }))
}

function snippet(hit) {
  const at = hit.words.map((word) => hit.ft.indexOf(word)).filter((i) => i >= 0).sort((a, b) => a - b)[0] ?? 0
  const from = Math.max(0, at - 50), text = (from ? "…" : "") + hit.t.slice(from, from + 170)
  const words = hit.words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"))
  return escape(text).replace(new RegExp(words.map(escape).join("|"), "gi"), "<mark>$&</mark>")
}

function show() {
  const hits = find(input.value)
  list.innerHTML = hits.map((hit) => `<li><a href="${hit.u}"><b>${escape(hit.s || hit.p)}</b><small>${escape(hit.p)}</small><span>${snippet(hit)}</span></a></li>`).join("")
    || (input.value.trim() ? '<li class="none">Nothing found.</li>' : "")
}

function openSearch(query = "") { if (!dialog.open) dialog.showModal(); input.value = query; show(); input.focus() }
$("#find").onclick = () => openSearch()
input.oninput = show
dialog.onclick = (event) => { if (event.target === dialog || event.target.closest("a")) dialog.close() }
dialog.onkeydown = (event) => {
  const links = [...list.querySelectorAll("a")], at = links.indexOf(document.activeElement)
  if (event.key === "ArrowDown") { event.preventDefault(); links[Math.min(at + 1, links.length - 1)]?.focus() }
  if (event.key === "ArrowUp") { event.preventDefault(); at > 0 ? links[at - 1].focus() : input.focus() }
  if (event.key === "Enter" && document.activeElement === input) links[0]?.click()
}
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, textarea") || event.altKey) return
  if (event.key === "/" || (event.key === "k" && (event.ctrlKey || event.metaKey))) { event.preventDefault(); openSearch() }
})
const asked = new URLSearchParams(location.search).get("q")   // index.html?q=softmax
if (asked) openSearch(asked)
