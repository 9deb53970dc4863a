//! `ngx.re`: regular expressions of PCRE.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use mlua::{Either, Lua, Table};
use pcre2::bytes::{CaptureLocations, Regex};
use rustc_hash::FxHashMap;

use super::natives::{Natives, borrowed, text};
use crate::modules::lua::current;
use crate::regex::compile_with;
use weir_engine::operation;
use weir_sys::dfa::{Dfa, DfaOptions};

/// Compiled patterns that a loop keeps.
const KEPT: usize = 1024;

/// Patterns by options, limit and text.
type Compiled = FxHashMap<Vec<u8>, Rc<Pattern>>;

/// A compiled pattern.
struct Pattern {
    regex: Regex,
    /// Option `d`: it matches so.
    dfa: Option<Dfa>,
    /// Option `u`: pattern and subject are UTF-8.
    is_utf: bool,
    /// Room for the groups of the next match.
    spare: Cell<Option<CaptureLocations>>,
}

/// Where the groups of a match are.
enum Groups {
    All(CaptureLocations),
    /// A match of option `d`, which has no other group.
    Whole(usize, usize),
}

impl Groups {
    fn get(&self, n: usize) -> Option<(usize, usize)> {
        match self {
            Groups::All(all) => all.get(n),
            Groups::Whole(from, to) => (n == 0).then_some((*from, *to)),
        }
    }

    fn len(&self) -> usize {
        match self {
            Groups::All(all) => all.len(),
            Groups::Whole(..) => 1,
        }
    }
}

thread_local! {
    static COMPILED: RefCell<Compiled> = RefCell::default();
    /// The key of the pattern that is looked for.
    static KEY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// How large the stack of a compiled pattern may grow; PCRE's own where that is not said.
    static STACK: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    // Beside the match, where the next one is looked for.
    natives.add("re_match", |lua, (subject, pattern, options, start): MatchArguments| {
        let subject = subject.as_bytes();
        let lists = lists_names(options.as_ref());
        let found = search(&subject, &pattern, options.as_ref(), start, |pattern, groups| {
            let (from, to) = groups.get(0).unwrap_or_default();
            let table = table(lua, &subject, &pattern.regex, groups, lists);
            let next = pattern.next(&subject, from, to);
            table.map(|table| (table, from, to, next)).map_err(|error| error.to_string())
        });
        match found.and_then(Option::transpose) {
            Ok(Some((table, from, to, next))) => {
                (None, Some(table), Some(from + 1), Some(to), Some(next + 1))
            }
            Ok(None) => (None, None, None, None, None),
            Err(text) => (Some(text), None, None, None, None),
        }
    })?;
    // Last, behind which byte of the replacement a name is wrong.
    natives.add("re_replace", |lua, arguments: ReplaceArguments| {
        let (subject, pattern, options, to, all) = arguments;
        let subject = subject.as_bytes();
        let to = to.as_bytes();
        let parts = match template(&to) {
            Ok(parts) => parts,
            Err(at) => return (None, None, None, Some(at)),
        };
        let done = replace(&subject, &pattern, options.as_ref(), &parts, all);
        let done = done.and_then(|(out, count)| {
            let out = text(lua, out).map_err(|error| error.to_string())?;
            Ok((out, count))
        });
        match done {
            Ok((out, count)) => (None, Some(out), Some(count), None),
            Err(why) => (Some(why), None, None, None),
        }
    })?;
    // False where patterns have their stacks already.
    natives.add("re_stack", |_, bytes: usize| {
        let is_first = COMPILED.with_borrow(FxHashMap::is_empty);
        if is_first {
            STACK.set(Some(bytes));
        }
        is_first
    })?;
    natives.add(
        "re_span",
        |_,
         (subject, pattern, options, start, nth): (
            mlua::String,
            mlua::String,
            Option<mlua::String>,
            usize,
            usize,
        )| {
            let span = |_: &Pattern, groups: &Groups| {
                let whole = groups.get(0).map(|(_, to)| to);
                let (from, to) = groups.get(nth).map(|(from, to)| (from + 1, to)).unzip();
                (None, from, to, whole, groups.len())
            };
            match search(&subject.as_bytes(), &pattern, options.as_ref(), start, span) {
                Ok(Some(span)) => span,
                Ok(None) => (None, None, None, None, 0),
                Err(text) => (Some(text), None, None, None, 0),
            }
        },
    )
}

/// Subject, pattern, options, and where to begin, from 1.
type MatchArguments = (mlua::String, mlua::String, Option<mlua::String>, usize);

/// Subject, pattern, options, what takes the place of matches, and whether it does so for all.
type ReplaceArguments = (mlua::String, mlua::String, Option<mlua::String>, mlua::String, bool);

/// What `f` makes of the first match from `start` on, counted from 1.
fn search<T>(
    subject: &[u8],
    pattern: &mlua::String,
    options: Option<&mlua::String>,
    start: usize,
    f: impl FnOnce(&Pattern, &Groups) -> T,
) -> Result<Option<T>, String> {
    let pattern = compiled(pattern, options)?;
    pattern.search(subject, start.saturating_sub(1), f)
}

impl Pattern {
    /// What `f` makes of the first match from `start` on.
    fn search<T>(
        &self,
        subject: &[u8],
        start: usize,
        f: impl FnOnce(&Pattern, &Groups) -> T,
    ) -> Result<Option<T>, String> {
        let failed = |code: i32| format!("pcre_exec() failed: {code}");
        if start > subject.len() {
            return Ok(None);
        }
        if let Some(dfa) = &self.dfa {
            let found = operation("regex", || dfa.find(subject, start)).map_err(failed)?;
            return Ok(found.map(|at| f(self, &Groups::Whole(at.start, at.end))));
        }
        let spare = self.spare.take();
        let mut groups = spare.unwrap_or_else(|| self.regex.capture_locations());
        let found = operation("regex", || {
            self.regex.captures_read_at(&mut groups, subject, start).map(|found| found.is_some())
        });
        let found = found.map_err(|error| failed(error.code()))?;
        let groups = Groups::All(groups);
        let made = found.then(|| f(self, &groups));
        if let Groups::All(groups) = groups {
            self.spare.set(Some(groups));
        }
        Ok(made)
    }

    /// Where the next match is looked for: behind this one, and behind an empty one a byte or a character later.
    fn next(&self, subject: &[u8], from: usize, to: usize) -> usize {
        if to > from {
            return to;
        }
        let within = |byte: &u8| (0x80..0xC0).contains(byte);
        let mut next = to + 1;
        while self.is_utf && subject.get(next).is_some_and(within) {
            next += 1;
        }
        next
    }
}

/// A piece of a replacement.
enum Part<'t> {
    Text(&'t [u8]),
    /// What this group has matched.
    Group(usize),
}

/// A replacement with `$1`, `${1}` and `$$`; the error is behind which byte a name is wrong.
fn template(text: &[u8]) -> Result<Vec<Part<'_>>, usize> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some(at) = memchr::memchr(b'$', rest) {
        let (before, behind) = rest.split_at(at);
        parts.push(Part::Text(before));
        let name = behind.get(1..).unwrap_or_default();
        let wrong = text.len() - name.len();
        let braced = name.strip_prefix(b"{");
        let inner = braced.unwrap_or(name);
        let digits = inner.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (number, left) = inner.split_at(digits);
        rest = match (name.strip_prefix(b"$"), braced) {
            (Some(left), _) => {
                parts.push(Part::Text(b"$"));
                left
            }
            (None, _) if digits == 0 => return Err(wrong),
            (None, Some(_)) => left.strip_prefix(b"}").ok_or(wrong)?,
            (None, None) => left,
        };
        if digits > 0 {
            // One that is too large is a group that there is not.
            let number = std::str::from_utf8(number).map_err(|_| wrong)?;
            parts.push(Part::Group(number.parse().unwrap_or(usize::MAX)));
        }
    }
    parts.push(Part::Text(rest));
    Ok(parts)
}

/// The subject with its first match, or with all of them, replaced, and how many there were.
fn replace(
    subject: &[u8],
    pattern: &mlua::String,
    options: Option<&mlua::String>,
    parts: &[Part<'_>],
    all: bool,
) -> Result<(Vec<u8>, usize), String> {
    let pattern = compiled(pattern, options)?;
    let (mut out, mut last, mut at, mut count) = (Vec::new(), 0, 0, 0);
    while at <= subject.len() {
        let found = pattern.search(subject, at, |_, groups| {
            let (from, to) = groups.get(0).unwrap_or_default();
            out.extend_from_slice(subject.get(last..from).unwrap_or_default());
            for part in parts {
                let group = |n: usize| groups.get(n).and_then(|(from, to)| subject.get(from..to));
                out.extend_from_slice(match part {
                    Part::Text(text) => text,
                    Part::Group(n) => group(*n).unwrap_or_default(),
                });
            }
            (from, to)
        });
        let Some((from, to)) = found? else { break };
        (last, at, count) = (to, pattern.next(subject, from, to), count + 1);
        if !all {
            break;
        }
    }
    out.extend_from_slice(subject.get(last..).unwrap_or_default());
    Ok((out, count))
}

fn compiled(pattern: &mlua::String, options: Option<&mlua::String>) -> Result<Rc<Pattern>, String> {
    // Scripts of `http` and of `stream` may have different limits.
    let limit = current::scripts().and_then(|scripts| scripts.match_limit);
    let options = options.map(|options| options.as_bytes());
    let options = options.as_deref().unwrap_or_default();
    let pattern = pattern.as_bytes();
    KEY.with_borrow_mut(|key| {
        key.clear();
        // No option has a zero.
        key.extend_from_slice(options);
        key.push(0);
        key.extend_from_slice(&limit.unwrap_or(u64::MAX).to_le_bytes());
        key.extend_from_slice(&pattern);
        if let Some(known) = COMPILED.with_borrow(|all| all.get(key).cloned()) {
            return Ok(known);
        }
        let compiled = Rc::new(compile(&pattern, options, limit)?);
        COMPILED.with_borrow_mut(|all| {
            if all.len() >= KEPT {
                all.clear();
            }
            all.insert(key.clone(), compiled.clone());
        });
        Ok(compiled)
    })
}

/// Options: i, m, s, x, u, U, a, d, D, J; j and o ask for what is done anyway.
fn compile(pattern: &[u8], options: &[u8], limit: Option<u64>) -> Result<Pattern, String> {
    let has = |option: u8| options.contains(&option);
    if let Some(odd) = options.iter().find(|option| !b"imsxuUajodJD".contains(option)) {
        return Err(format!("unknown flag \"{}\"", char::from(*odd)));
    }
    let mut text = limit.map(|n| format!("(*LIMIT_MATCH={n})").into_bytes()).unwrap_or_default();
    let is_utf = has(b'u') || has(b'U');
    let start = text.len();
    if has(b'D') {
        text.extend_from_slice(b"(?J)");
    }
    if has(b'a') {
        // Only where the search begins.
        text.extend_from_slice(b"\\G");
    }
    let of_javascript = has(b'J').then(|| with_points(pattern));
    let pattern = of_javascript.as_deref().unwrap_or(pattern);
    let of_bytes = (!is_utf && std::str::from_utf8(pattern).is_err()).then(|| as_text(pattern));
    let pattern = of_bytes.as_deref().unwrap_or(pattern);
    match text.len() == start {
        true => text.extend_from_slice(pattern),
        false => text.extend_from_slice(&[b"(?:", pattern, b")"].concat()),
    }
    let (regex, _) = compile_with(&text, |builder| {
        builder.caseless(has(b'i')).multi_line(has(b'm')).dotall(has(b's')).extended(has(b'x'));
        builder.utf(is_utf).max_jit_stack_size(STACK.get());
    })
    .map_err(|error| error.to_string())?;
    let read = DfaOptions {
        caseless: has(b'i'),
        multi_line: has(b'm'),
        dotall: has(b's'),
        extended: has(b'x'),
        utf: is_utf,
    };
    let of = |code: i32| format!("pcre_compile() failed: {code}");
    let dfa = has(b'd').then(|| Dfa::new(regex.as_str(), read)).transpose().map_err(of)?;
    Ok(Pattern { regex, dfa, is_utf, spare: Cell::default() })
}

/// A pattern of bytes that are no text, as a text: in it each of them is `\xE9`.
fn as_text(pattern: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(pattern.len() * 2);
    for byte in pattern {
        match byte {
            0x80.. => out.extend_from_slice(format!("\\x{byte:02X}").as_bytes()),
            _ => out.push(*byte),
        }
    }
    out
}

/// Option `J`: `\u7AE0`, a character of JavaScript, is `\x{7AE0}`.
fn with_points(pattern: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        let (before, escape) = rest.split_at(at);
        out.extend_from_slice(before);
        let digits = escape.get(2..6).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let taken = match (escape.get(1), digits) {
            (Some(b'u'), Some(digits)) => {
                out.extend_from_slice(&[b"\\x{", digits, b"}"].concat());
                6
            }
            _ => {
                out.extend_from_slice(escape.get(..2).unwrap_or(escape));
                2
            }
        };
        rest = escape.get(taken..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    out
}

/// Option `D`: several groups may have one name, so each name has a list.
fn lists_names(options: Option<&mlua::String>) -> bool {
    options.is_some_and(|options| options.as_bytes().contains(&b'D'))
}

/// Groups by number and by name; one that took no part is false, and is in no list.
fn table(
    lua: &Lua,
    subject: &[u8],
    regex: &Regex,
    groups: &Groups,
    lists: bool,
) -> mlua::Result<Table> {
    let table = lua.create_table_with_capacity(groups.len(), 1)?;
    for n in 0..groups.len() {
        let text = groups.get(n).and_then(|(from, to)| subject.get(from..to));
        let value = || text.map_or(Either::Right(false), |text| Either::Left(borrowed(text)));
        if let Some(Some(name)) = regex.capture_names().get(n) {
            match text {
                Some(text) if lists => add_to_list(lua, &table, name, text)?,
                None if lists => {}
                _ => table.raw_set(name.as_str(), value())?,
            }
        }
        table.raw_set(n, value())?;
    }
    Ok(table)
}

fn add_to_list(lua: &Lua, table: &Table, name: &str, text: &[u8]) -> mlua::Result<()> {
    match table.raw_get::<Option<Table>>(name)? {
        Some(list) => list.raw_push(borrowed(text)),
        None => table.raw_set(name, lua.create_sequence_from([borrowed(text)])?),
    }
}
