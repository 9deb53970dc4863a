//! `ngx.re`: regular expressions of PCRE.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use mlua::{Lua, Table, Value};
use pcre2::bytes::{CaptureLocations, Regex};

use super::natives::Natives;
use crate::modules::lua::current;
use crate::regex::compile_with;
use weir_engine::operation;
use weir_sys::dfa::{Dfa, DfaOptions};

/// Compiled patterns that a loop keeps.
const KEPT: usize = 1024;

/// Patterns by options, text and limit.
type Compiled = HashMap<(Vec<u8>, Vec<u8>, Option<u64>), Rc<Pattern>>;

/// A compiled pattern.
struct Pattern {
    regex: Regex,
    /// Option `d`: it matches so.
    dfa: Option<Dfa>,
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
    /// How large the stack of a compiled pattern may grow; PCRE's own where that is not said.
    static STACK: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add("re_match", |lua, (subject, pattern, options, start): MatchArguments| {
        let subject = subject.as_bytes();
        match search(&subject, &pattern, options.as_ref(), start) {
            Ok(Some((pattern, groups))) => {
                match table(lua, &subject, &pattern.regex, &groups, lists_names(options.as_ref())) {
                    Ok(found) => {
                        let (from, to) = groups.get(0).unwrap_or_default();
                        (None, Some(found), Some(from + 1), Some(to))
                    }
                    Err(error) => (Some(error.to_string()), None, None, None),
                }
            }
            Ok(None) => (None, None, None, None),
            Err(text) => (Some(text), None, None, None),
        }
    })?;
    // False where patterns have their stacks already.
    natives.add("re_stack", |_, bytes: usize| {
        let is_first = COMPILED.with_borrow(HashMap::is_empty);
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
            match search(&subject.as_bytes(), &pattern, options.as_ref(), start) {
                Ok(Some((_, groups))) => {
                    let whole = groups.get(0).map(|(_, to)| to);
                    let (from, to) = groups.get(nth).map(|(from, to)| (from + 1, to)).unzip();
                    (None, from, to, whole, groups.len())
                }
                Ok(None) => (None, None, None, None, 0),
                Err(text) => (Some(text), None, None, None, 0),
            }
        },
    )
}

/// Subject, pattern, options, and where to begin, from 1.
type MatchArguments = (mlua::String, mlua::String, Option<mlua::String>, usize);

/// A match: the pattern, and where its groups are.
type MatchedRegex = Option<(Rc<Pattern>, Groups)>;

fn search(
    subject: &[u8],
    pattern: &mlua::String,
    options: Option<&mlua::String>,
    start: usize,
) -> Result<MatchedRegex, String> {
    let pattern = compiled(pattern, options)?;
    let start = start.saturating_sub(1);
    if start > subject.len() {
        return Ok(None);
    }
    let failed = |code: i32| format!("pcre_exec() failed: {code}");
    if let Some(dfa) = &pattern.dfa {
        let found = operation("regex", || dfa.find(subject, start)).map_err(failed)?;
        return Ok(found.map(|at| (pattern, Groups::Whole(at.start, at.end))));
    }
    let mut groups = pattern.regex.capture_locations();
    match operation("regex", || pattern.regex.captures_read_at(&mut groups, subject, start)) {
        Ok(Some(_)) => Ok(Some((pattern, Groups::All(groups)))),
        Ok(None) => Ok(None),
        Err(error) => Err(failed(error.code())),
    }
}

fn compiled(pattern: &mlua::String, options: Option<&mlua::String>) -> Result<Rc<Pattern>, String> {
    let options = options.map(|options| options.as_bytes().to_vec()).unwrap_or_default();
    // Scripts of `http` and of `stream` may have different limits.
    let limit = current::scripts().and_then(|scripts| scripts.match_limit);
    let key = (options, pattern.as_bytes().to_vec(), limit);
    if let Some(known) = COMPILED.with_borrow(|all| all.get(&key).cloned()) {
        return Ok(known);
    }
    let pattern = Rc::new(compile(&key.1, &key.0, limit)?);
    COMPILED.with_borrow_mut(|all| {
        if all.len() >= KEPT {
            all.clear();
        }
        all.insert(key, pattern.clone());
    });
    Ok(pattern)
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
    Ok(Pattern { regex, dfa })
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
        let value = match text {
            Some(text) => Value::String(lua.create_string(text)?),
            None => Value::Boolean(false),
        };
        if let Some(Some(name)) = regex.capture_names().get(n) {
            match text {
                Some(_) if lists => add_to_list(lua, &table, name, &value)?,
                None if lists => {}
                _ => table.raw_set(name.as_str(), &value)?,
            }
        }
        table.raw_set(n, value)?;
    }
    Ok(table)
}

fn add_to_list(lua: &Lua, table: &Table, name: &str, value: &Value) -> mlua::Result<()> {
    match table.raw_get::<Option<Table>>(name)? {
        Some(list) => list.raw_push(value),
        None => table.raw_set(name, lua.create_sequence_from([value])?),
    }
}
