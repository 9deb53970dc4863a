//! `ngx.re`: PCRE regular expressions.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use mlua::BString;
use pcre2::bytes::{CaptureLocations, Regex};
use rustc_hash::FxHashMap;

use super::natives::{AnswerKind, Natives};
use crate::modules::lua::current;
use crate::regex::compile_with;
use weir_engine::operation;
use weir_sys::dfa::{Dfa, DfaOptions};
use weir_sys::lua::direct::ROOM;

/// The most compiled patterns of a thread. A VM keeps the numbers of at most half of them.
const KEPT: usize = 2048;

/// Compiled patterns by number. No number is used twice.
#[derive(Default)]
struct Compiled {
    patterns: FxHashMap<u32, Rc<Pattern>>,
    newest: u32,
}

/// A compiled pattern.
struct Pattern {
    regex: Regex,
    /// The DFA matcher of option `d`.
    dfa: Option<Dfa>,
    /// Option `u`: whether pattern and subject are UTF-8.
    is_utf: bool,
    /// A buffer for the groups of the next match.
    spare: Cell<Option<CaptureLocations>>,
}

/// The positions of a match's groups.
enum Groups {
    All(CaptureLocations),
    /// A match of option `d`, which has no groups.
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
    /// The most that the stack of a compiled pattern may grow to; PCRE's default if it is not set.
    static STACK: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    // An error; or the pattern's number, its groups with the whole match, and their names if there
    // are any.
    natives.add("re_compile", |lua, (text, options): (BString, Option<BString>)| {
        // `http` and `stream` may have different limits.
        let limit = current::scripts().and_then(|scripts| scripts.match_limit);
        let options = options.as_ref().map(|options| options.as_slice()).unwrap_or_default();
        let pattern = match compile(&text, options, limit) {
            Ok(pattern) => pattern,
            Err(why) => return (Some(why), None, None, None),
        };
        let names = pattern.regex.capture_names();
        let named = names.iter().enumerate().filter_map(|(n, name)| Some((n, name.as_deref()?)));
        let named = names.iter().any(Option::is_some).then(|| lua.create_table_from(named));
        // Option `d` has no groups.
        let groups = if pattern.dfa.is_some() { 1 } else { names.len() };
        (None, Some(keep(pattern)), Some(groups), named.and_then(Result::ok))
    })?;
    // The positions of the groups of the first match at or after an offset, and the offset of the
    // next search.
    natives.direct("re_search", |passed, answer| {
        let [number, start, ..] = passed.numbers;
        let Some(pattern) = kept(number) else { return Ok(AnswerKind::Forgotten) };
        let found = pattern.search(passed.first, start as usize, |pattern, groups| {
            // The size of the buffer that scripts read them from.
            if groups.len() > ROOM / 8 {
                return Err("too many groups".to_owned());
            }
            for n in 0..groups.len() {
                for at in groups.get(n).map_or([-1, -1], |(from, to)| [from as i32, to as i32]) {
                    answer.text().extend_from_slice(&at.to_ne_bytes());
                }
            }
            let (from, to) = groups.get(0).unwrap_or_default();
            answer.number = pattern.next(passed.first, from, to) as f64;
            Ok(AnswerKind::Number)
        });
        found?.unwrap_or(Ok(AnswerKind::Nil))
    })?;
    // The subject with its first match, or all of them, replaced, and their number; or the offset
    // after which a name in the replacement is wrong.
    natives.direct("re_replace", |passed, answer| {
        let [number, all, ..] = passed.numbers;
        let Some(pattern) = kept(number) else { return Ok(AnswerKind::Forgotten) };
        let parts = match template(passed.second) {
            Ok(parts) => parts,
            Err(at) => {
                answer.number = at as f64;
                return Ok(AnswerKind::False);
            }
        };
        let count = replace(&pattern, passed.first, &parts, all != 0.0, answer.text());
        answer.number = count? as f64;
        Ok::<_, String>(AnswerKind::Text)
    })?;
    // False if patterns were compiled before.
    natives.add("re_stack", |_, bytes: usize| {
        let is_first = COMPILED.with_borrow(|compiled| compiled.newest == 0);
        if is_first {
            STACK.set(Some(bytes));
        }
        is_first
    })
}

/// Keeps a compiled pattern and returns its number.
fn keep(pattern: Pattern) -> u32 {
    COMPILED.with_borrow_mut(|compiled| {
        if compiled.patterns.len() >= KEPT {
            compiled.patterns.clear();
        }
        // Wrapping would take too long to happen.
        compiled.newest = compiled.newest.wrapping_add(1);
        compiled.patterns.insert(compiled.newest, Rc::new(pattern));
        compiled.newest
    })
}

/// The pattern with a number, if it is still kept.
fn kept(number: f64) -> Option<Rc<Pattern>> {
    COMPILED.with_borrow(|compiled| compiled.patterns.get(&(number as u32)).cloned())
}

/// PCRE2_ERROR_BADOFFSET
const BAD_OFFSET: i32 = -33;

impl Pattern {
    /// Calls `f` with the first match from `start` on.
    fn search<T>(
        &self,
        subject: &[u8],
        start: usize,
        f: impl FnOnce(&Pattern, &Groups) -> T,
    ) -> Result<Option<T>, String> {
        let failed = |code: i32| format!("pcre_exec() failed: {code}");
        if start > subject.len() {
            return Err(failed(BAD_OFFSET));
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

    /// The offset of the next search: the end of this match, or a byte or character later if it is
    /// empty.
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
    /// The text of this group.
    Group(usize),
}

/// Parses a replacement with `$1`, `${1}` and `$$`. The error is the offset after which a name is
/// wrong.
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
            // Too large a number is a group that does not exist.
            let number = std::str::from_utf8(number).map_err(|_| wrong)?;
            parts.push(Part::Group(number.parse().unwrap_or(usize::MAX)));
        }
    }
    parts.push(Part::Text(rest));
    Ok(parts)
}

/// Appends the subject with its first match, or all of them, replaced. Returns their number.
fn replace(
    pattern: &Pattern,
    subject: &[u8],
    parts: &[Part<'_>],
    all: bool,
    out: &mut Vec<u8>,
) -> Result<usize, String> {
    let (mut last, mut at, mut count) = (0, 0, 0);
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
    Ok(count)
}

/// Compiles a pattern with options i, m, s, x, u, U, a, d, D, J. Options j and o have no effect:
/// what they ask for is always done.
fn compile(pattern: &[u8], options: &[u8], limit: Option<u64>) -> Result<Pattern, String> {
    let has = |option: u8| options.contains(&option);
    if let Some(odd) = options.iter().find(|option| !b"imsxuUajodJD".contains(option)) {
        return Err(format!("unknown flag \"{}\"", char::from(*odd)));
    }
    let mut text = limit.map(|n| format!("(*LIMIT_MATCH={n})").into_bytes()).unwrap_or_default();
    let is_utf = has(b'u') || has(b'U');
    let of_javascript = has(b'J').then(|| with_points(pattern));
    let pattern = of_javascript.as_deref().unwrap_or(pattern);
    let of_bytes = (!is_utf && std::str::from_utf8(pattern).is_err()).then(|| as_text(pattern));
    let pattern = of_bytes.as_deref().unwrap_or(pattern);
    let (verbs, pattern) = behind_verbs(pattern);
    text.extend_from_slice(verbs);
    if has(b'D') {
        text.extend_from_slice(b"(?J)");
    }
    text.extend_from_slice(&match has(b'a') {
        // Option `a` anchors the match at the start of the search. With `x`, a comment may end the
        // pattern.
        true => [&b"\\G(?:"[..], pattern, if has(b'x') { b"\n)" } else { b")" }].concat(),
        false => pattern.to_vec(),
    });
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

/// The verbs at the start of a pattern, such as `(*UTF8)`, which count only there, and the rest.
fn behind_verbs(pattern: &[u8]) -> (&[u8], &[u8]) {
    let verbs = pattern.split(|byte| *byte == b')').take_while(|verb| verb.starts_with(b"(*"));
    let length = verbs.map(|verb| verb.len() + 1).sum::<usize>();
    pattern.split_at(length.min(pattern.len()))
}

/// A pattern that is not UTF-8, as a text in which bytes from 0x80 on are escapes such as `\xE9`.
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

/// Option `J`: converts JavaScript's `\u7AE0` to `\x{7AE0}`.
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
