"""Quick checks of what is written: links, spelling, pages made from code and data. Nothing is run or built."""
import json, re
from pathlib import Path

import nbformat
import pytest

import pages
from book import chapters
from build import ALSO, MADE, beside, index_text
from conftest import ROOT
from render import Page

NOTEBOOKS = sorted((ROOT/'nbs').glob('*.ipynb'))
MARKDOWN = [ROOT/'README.md', ROOT/'CONTRIBUTING.md', ROOT/'CHANGELOG.md', *(ROOT/'docs'/name for name in pages.WRITTEN),
            *sorted((ROOT/'data').rglob('*.md'))]


def prose(path: Path) -> str:
    "A file's Markdown; of a notebook its Markdown cells."
    if path.suffix != '.ipynb': return path.read_text(encoding='utf-8')
    return '\n\n'.join(c.source for c in nbformat.read(path, 4).cells if c.cell_type == 'markdown')


def anchors(path: Path) -> set:
    "The anchors that the site gives a notebook's headings."
    page = Page('x.html', {}, Path('.'))
    page.prose(re.sub(r'^# .+$', '', prose(path), count=1, flags=re.M))
    return {s['id'] for s in page.sections}


def dead_links(path: Path, text: str = None) -> list:
    "Links of a file to files or headings that are not there."
    text, found = re.sub(r'```.*?```|`[^`\n]*`', '', text or prose(path), flags=re.S), []
    for target in re.findall(r'\]\(([^)\s]+)\)', text):
        if re.match(r'(https?|mailto):', target): continue
        name, _, anchor = target.partition('#')
        there = (path.parent/name).resolve() if name else path
        made = name.removesuffix('.html') in MADE and path.parent.name == 'docs'      # a page that the build makes
        page = path.suffix != '.ipynb' or there.suffix in ('.ipynb', '.md', '.svg')           # what the site shows
        if not (made or there.exists() and page): found.append(target)
        elif anchor and there.suffix == '.ipynb' and anchor not in anchors(there) | {'what-this-chapter-exports'}: found.append(target)
    return found


@pytest.mark.parametrize('path', [*NOTEBOOKS, *MARKDOWN], ids=lambda p: p.name)
def test_no_dead_link(path): assert dead_links(path) == []


def test_a_dead_link_is_seen():
    here = ROOT/'nbs'/'index.ipynb'
    assert dead_links(here, '[a](gone.ipynb) [b](01_modelfile.ipynb#nothing-like-it) [c](https://example.org) [d](01_modelfile.ipynb) [e](../data)') == \
        ['gone.ipynb', '01_modelfile.ipynb#nothing-like-it', '../data']


# What people really mistype. British spelling is this book's.
MISTAKES = '''accomodat\\w+ acheiv\\w+ adress\\w* agian alot alway apparant arguement\\w* begining beleiv\\w+ calender catagor\\w+ collegue\\w*
comming commited commiting concious consistant\\w* definat\\w+ dependan\\w+ desparat\\w+ diffrent dissapear\\w* embarass\\w* enviroment\\w*
exagerat\\w+ existance experiance\\w* explaination\\w* fourty freind\\w* garantee\\w* goverment grammer gaurd\\w* happend harrass\\w* heigth
immediatly independan\\w+ indispensible infinit[ie]y? intial\\w* knowlege lenght\\w* libary liason maintainance mispell\\w* neccessar\\w+ nessecar\\w+
occassion\\w* occured occuring occurence\\w* ouput\\w* paralell\\w* paramter\\w* parrallel\\w* performace perfom\\w* persistan\\w+ posession
prefered preferrable probabl?ly? publically quantiz?isation recieve\\w* recomend\\w* refered refering relevent reproducable rythm seperat\\w+
sieze similiar simultanous\\w* speach succesful\\w* succesive sucess\\w* suprise\\w* tehn? thier threshhold\\w* tommorow transfered tryed
truely unforseen untill usefull vaccuum verfy\\w* vocabular+ies? wether whcih widht wich wierd witdh writting
color\\w* behavior\\w* favorit\\w* neighbor\\w* center\\w* meter initializ\\w* optimiz(?:e|ed|es|ing|ation) recogniz\\w* organiz\\w* summariz\\w* analyz\\w* labeled modeled'''
ALLOWED = {'infinite', 'infinity', 'probably', 'vocabularies'}
WRONG = re.compile(rf"\b({'|'.join(MISTAKES.split())})\b", re.I)


def mistakes(text: str) -> list:
    "Words that are mistyped, and words that stand twice."
    text = re.sub(r'```.*?```|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]+\$|\]\([^)]*\)|<[^>]+>|https?:\S+|\*[^*\n]{1,60}\*|["“][^"”\n]{1,80}["”]', ' _ ', text, flags=re.S)
    found = [w for w in (m[0] for m in WRONG.finditer(text)) if w.lower() not in ALLOWED]
    return found + [m[0] for m in re.finditer(r'\b([a-z]{2,})[ \n]+\1\b(?!-)', text) if m[1] not in ('that', 'had', 'is', 'one', 'no')]


@pytest.mark.parametrize('path', [*NOTEBOOKS, *MARKDOWN], ids=lambda p: p.name)
def test_spelling(path): assert mistakes(prose(path)) == []


def test_a_mistake_is_seen():
    assert mistakes('We recieve the the text; the `color` is *seperate*, and neighbors occured.') == ['recieve', 'neighbors', 'occured', 'the the']


def test_the_first_page_has_its_picture_and_its_figures():
    text = index_text(ROOT/'nbs')
    assert '../docs/round.svg' in text and (ROOT/'docs'/'round.svg').is_file() and '<!-- measured -->' in text
    table = pages.summary_table()
    [(_, d)] = pages.results('bench-cpu', 'cpu')[-1:]
    best = max(r['value'] for r in pages.rows_of(d, arm='plain', unit="tok/s ÷ llama.cpp's"))
    assert f'{best:.1f}' in table and table.count('\n') >= 4


def test_every_flag_and_variable_has_its_line():
    page, flags = beside('knobs.md'), pages.flags()
    names = [n for n, _ in flags if n.startswith('-')]                            # one that means two things stands there twice
    for name in {*names, *pages.variables()}: assert page.count(f'| `{name}` |') == max(1, names.count(name)), name
    from knobs import ENVIRONMENT, FLAGS
    assert set(FLAGS) <= {n for n, _ in flags} and set(ENVIRONMENT) == pages.variables(), 'docs/knobs.py tells about something that is not there'
    silent = {n for n in names if n not in ('--help', '--version') and not FLAGS.get(n, {}).get('why')}
    assert not silent, f'docs/knobs.py should say why: {silent}'


def test_results_follow_the_published_schema():
    "The parts of JSON Schema that docs/results.schema.json uses, checked by hand."
    schema = json.loads((ROOT/'docs'/'results.schema.json').read_text(encoding='utf-8'))
    kinds = {'string': str, 'object': dict, 'array': list, 'null': type(None), 'integer': int, 'number': (int, float)}
    def check(value, s, where):
        types = s.get('type', [])
        types = [types] if isinstance(types, str) else types
        assert not types or any(isinstance(value, kinds[t]) and not (isinstance(value, bool) and t != 'boolean') for t in types), (where, value)
        assert 'enum' not in s or value in s['enum'], (where, value)
        assert 'pattern' not in s or value is None or re.search(s['pattern'], value), (where, value)
        if isinstance(value, list):
            assert s.get('minItems', 0) <= len(value) <= s.get('maxItems', len(value)), where
            for i, v in enumerate(value): check(v, s.get('items', {}), f'{where}[{i}]')
        if isinstance(value, dict):
            assert set(s.get('required', [])) <= set(value), (where, set(s['required']) - set(value))
            for k, v in value.items(): check(v, s.get('properties', {}).get(k, {}), f'{where}.{k}')
    for path, d in pages.results():
        check(d, schema, path.name)
        assert path.parent.name in ('cpu', 'h200') and path.stem.startswith(d['topic']) and path.stem.endswith(d['date']), path
        page = pages.result_table(d)
        assert page.count('\n') >= 2 and len(pages.result_facts(path, d)) > 20
    with pytest.raises(AssertionError): check(dict(topic='x'), schema, 'bad')


def test_every_page_is_listed_and_every_chapter_in_a_part():
    assert {'knobs.md', 'results.md', 'glossary.md', 'ideas.md', 'scope.md'} <= set(ALSO)
    assert all(c.part != 'Appendix' for c in chapters()), [c.path.name for c in chapters() if c.part == 'Appendix']
    text = beside('glossary.md')
    words = [w.lower() for w in re.findall(r'^\| \*\*(.+?)\*\*', text, re.M)]
    assert words == sorted(words, key=lambda w: re.sub(r'\W', '', w)) or words == sorted(words), 'the glossary is not in order'
