//! Replaces strings in a response. nginx: ngx_http_sub_filter_module.

use bytes::Bytes;
use weir_conf::{Directive as Line, Error};
use weir_engine::Chain;

use crate::answer::filters::{BodyFilter, Filtered, into_bytes};
use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set, setting};
use crate::config::types::{Types, types_setting};
use crate::phases::Step;
use crate::request::Request;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};
use weir_values::Template;

/// The most strings of a block.
const PAIRS: usize = 255;

/// Settings.
#[derive(Debug, Clone)]
pub struct Conf {
    /// The strings to search for, in lower case, and their replacements.
    pairs: Vec<(Template, Template)>,
    once: bool,
    last_modified: bool,
    types: Types,
}

impl Default for Conf {
    fn default() -> Self {
        Conf { pairs: Vec::new(), once: true, last_modified: false, types: Types::default() }
    }
}

impl Settings for Conf {}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "sub_filter",
        help: "Replaces a string, compared without case, by another one.",
        set: Set::Simple(sub_filter),
    },
    types_setting!(
        "sub_filter_types",
        CONF.types,
        "Content types of responses in which strings are replaced."
    ),
    setting!(
        "sub_filter_once",
        CONF.once,
        Line::flag,
        "Whether only the first match of each string is replaced."
    ),
    setting!(
        "sub_filter_last_modified",
        CONF.last_modified,
        Line::flag,
        "Keeps `Last-Modified` of the original response."
    ),
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module { name: "http_sub", directives: DIRECTIVES, ..Module::NEW };

fn sub_filter(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let [search, replacement] = d.args.as_slice() else { return Ok(()) };
    if search.bytes.is_empty() {
        return Err(d.error_at(search, "empty search pattern"));
    }
    if s.first(d) {
        CONF.change(&mut s.location).pairs.clear();
    }
    if CONF.of(&s.location).pairs.len() == PAIRS {
        return Err(d.error("number of search patterns exceeds 255"));
    }
    let from = s.setup.template_of(d, search, &search.bytes.to_ascii_lowercase())?;
    let to = s.setup.template(d, replacement)?;
    CONF.change(&mut s.location).pairs.push((from, to));
    Ok(())
}

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    !CONF.of(conf).pairs.is_empty()
}

/// Header filter.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    let conf = CONF.of(r.conf());
    if r.response.content_length == Some(0) || !conf.types.matches(&r.response.content_type) {
        return Ok(());
    }
    let mut search = Search::new(conf.once);
    for (from, to) in &conf.pairs {
        search.add(&from.eval(r), to);
    }
    if search.texts.is_empty() {
        return Ok(());
    }
    if r.is_main() {
        r.response.content_length = None;
        if conf.last_modified {
            r.response.weaken_etag();
        } else {
            r.response.clear_last_modified();
            r.response.etag = None;
        }
    }
    r.add_body_filter(Box::new(Sub(search)));
    Ok(())
}

struct Sub(Search);

impl BodyFilter for Sub {
    fn module(&self) -> &'static str {
        "sub_filter"
    }

    fn filter<'a>(&'a mut self, r: &'a mut Request, mut input: Chain, _: bool) -> Filtered<'a> {
        let (mut out, ends) = (Joined::default(), r.output.filters.ends_body());
        let mut eval = |template: &Template| Bytes::from(template.eval(r).into_owned());
        while let Some(segment) = input.pop() {
            let bytes = into_bytes(segment);
            self.0.read(bytes, &mut eval, &mut |bytes| out.push(bytes));
        }
        if ends {
            self.0.end(&mut eval, &mut |bytes| out.push(bytes));
        }
        Filtered::Now(Ok(out.into_chain()))
    }
}

/// The length below which pieces are joined. Otherwise a body with a match in each line would
/// become thousands of pieces.
const SHORT: usize = 512;

/// The output, with short pieces joined.
#[derive(Default)]
struct Joined {
    chain: Chain,
    short: Vec<u8>,
}

impl Joined {
    fn push(&mut self, bytes: Bytes) {
        if bytes.len() < SHORT {
            self.short.extend_from_slice(&bytes);
        } else {
            self.chain.push(std::mem::take(&mut self.short));
            self.chain.push(bytes);
        }
    }

    fn into_chain(mut self) -> Chain {
        self.chain.push(self.short);
        self.chain
    }
}

/// Searches for several strings in a body that comes in pieces. The match that begins first wins.
/// Of matches at the same byte, the string that was configured first wins.
struct Search {
    texts: Vec<Substitution>,
    once: bool,
    /// Whether a byte begins one of the strings.
    begins: Box<[bool; 256]>,
    /// The end of the input, which may be the beginning of a match.
    pending: Bytes,
    /// Bytes of the body before those that are searched.
    passed: u64,
}

struct Substitution {
    /// The string to search for, in lower case.
    from: Vec<u8>,
    to: &'static Template,
    /// The value of the replacement in this response, once it was evaluated.
    value: Option<Bytes>,
    /// The position in the body at which the string was compared last. No match begins before it.
    start: u64,
    /// Number of bytes that are equal there.
    equal: usize,
    /// For each beginning of the string, the length of the longest one that is shorter and also
    /// ends there. Empty until it is needed.
    borders: Vec<u32>,
    #[cfg(test)]
    compared: usize,
}

/// So few equal bytes are compared again at the next position.
const FEW: usize = 8;

/// The result of a comparison at a position.
enum At {
    /// No match.
    Nothing,
    /// The string of this index matches.
    Text(usize),
    /// A match may begin here: more bytes are needed.
    Unknown,
}

impl Search {
    fn new(once: bool) -> Search {
        let begins = Box::new([false; 256]);
        Search { texts: Vec::new(), once, begins, pending: Bytes::new(), passed: 0 }
    }

    /// Adds a string. An empty one never matches.
    fn add(&mut self, from: &[u8], to: &'static Template) {
        let from = from.to_ascii_lowercase();
        if let Some(&first) = from.first() {
            self.begins[usize::from(first)] = true;
            self.begins[usize::from(first.to_ascii_uppercase())] = true;
            self.texts.push(Substitution::new(from, to));
        }
    }

    fn read(
        &mut self,
        input: Bytes,
        eval: &mut dyn FnMut(&Template) -> Bytes,
        out: &mut dyn FnMut(Bytes),
    ) {
        let pending = std::mem::take(&mut self.pending);
        let body = if pending.is_empty() { input } else { [pending, input].concat().into() };
        self.scan(body, false, eval, out);
    }

    /// Ends the body. An incomplete match is text.
    fn end(&mut self, eval: &mut dyn FnMut(&Template) -> Bytes, out: &mut dyn FnMut(Bytes)) {
        let pending = std::mem::take(&mut self.pending);
        self.scan(pending, true, eval, out);
    }

    fn scan(
        &mut self,
        mut body: Bytes,
        last: bool,
        eval: &mut dyn FnMut(&Template) -> Bytes,
        out: &mut dyn FnMut(Bytes),
    ) {
        let mut at = 0;
        while !self.is_over() {
            let Some(skip) = self.next_begin(body.get(at..).unwrap_or_default()) else { break };
            at += skip;
            let position = self.passed + at as u64;
            match self.look(body.get(at..).unwrap_or_default(), position, last) {
                At::Nothing => at += 1,
                At::Text(n) => {
                    out(body.split_to(at));
                    let Some(text) = self.texts.get_mut(n) else { break };
                    bytes::Buf::advance(&mut body, text.from.len());
                    self.passed = position + text.from.len() as u64;
                    out(text.value.get_or_insert_with(|| eval(text.to)).clone());
                    at = 0;
                }
                At::Unknown => {
                    self.pending = body.split_off(at);
                    break;
                }
            }
        }
        self.passed += body.len() as u64;
        out(body);
    }

    /// Whether each string was replaced once, with `sub_filter_once on`.
    fn is_over(&self) -> bool {
        self.once && self.texts.iter().all(|text| text.value.is_some())
    }

    fn next_begin(&self, body: &[u8]) -> Option<usize> {
        body.iter().position(|byte| self.begins[usize::from(*byte)])
    }

    fn look(&mut self, body: &[u8], position: u64, last: bool) -> At {
        for (n, text) in self.texts.iter_mut().enumerate() {
            if self.once && text.value.is_some() {
                continue;
            }
            let equal = text.compare(body, position);
            if equal == text.from.len() {
                return At::Text(n);
            }
            if equal == body.len() && !last {
                return At::Unknown;
            }
        }
        At::Nothing
    }
}

impl Substitution {
    fn new(from: Vec<u8>, to: &'static Template) -> Substitution {
        Substitution {
            from,
            to,
            value: None,
            start: 0,
            equal: 0,
            borders: Vec::new(),
            #[cfg(test)]
            compared: 0,
        }
    }

    /// Returns how many bytes at the start of `body` are equal. `position` is its position in the
    /// whole body, at or after that of the call before. Bytes that are known to be equal or not are
    /// not compared again (Knuth, Morris and Pratt): a client may choose the string, and a long one
    /// that nearly matches everywhere would take its length for each byte.
    fn compare(&mut self, body: &[u8], position: u64) -> usize {
        self.move_to(position);
        if self.start > position {
            return 0;
        }
        let body = body.get(self.equal..).unwrap_or_default();
        let from = self.from.get(self.equal..).unwrap_or_default();
        let more =
            body.iter().zip(from).take_while(|(byte, want)| byte.to_ascii_lowercase() == **want);
        let more = more.count();
        self.equal += more;
        #[cfg(test)]
        {
            self.compared += more + 1;
        }
        self.equal
    }

    /// Moves to the first position from `position` on at which a match may begin.
    fn move_to(&mut self, position: u64) {
        while self.start < position {
            if self.equal <= FEW {
                (self.start, self.equal) = (position, 0);
                return;
            }
            if self.borders.is_empty() {
                self.borders = borders(&self.from);
            }
            let border = self.borders.get(self.equal - 1).map_or(0, |border| *border as usize);
            self.start += (self.equal - border) as u64;
            self.equal = border;
        }
    }
}

/// See [`Substitution::borders`].
fn borders(text: &[u8]) -> Vec<u32> {
    let mut borders: Vec<u32> = vec![0; text.len().min(1)];
    let mut len = 0;
    for byte in text.iter().skip(1) {
        while len > 0 && text.get(len) != Some(byte) {
            len = borders.get(len - 1).map_or(0, |border| *border as usize);
        }
        len += usize::from(text.get(len) == Some(byte));
        borders.push(len as u32);
    }
    borders
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use crate::trial::complaint;
    use weir_engine::Segment;

    /// Replaces `(from, to)` in a body that comes in these pieces.
    fn replaced(pairs: &[(&str, &'static Template)], once: bool, pieces: &[&[u8]]) -> Vec<u8> {
        let mut search = Search::new(once);
        for (from, to) in pairs {
            search.add(from.as_bytes(), to);
        }
        let mut all = Vec::new();
        let mut out = |bytes: Bytes| all.extend_from_slice(&bytes);
        let mut eval = |t: &Template| t.shared().unwrap_or_default();
        for piece in pieces {
            search.read(Bytes::copy_from_slice(piece), &mut eval, &mut out);
        }
        search.end(&mut eval, &mut out);
        all
    }

    static ONE: LazyLock<Template> = LazyLock::new(|| Template::text(b"1"));
    static LONG: LazyLock<Template> = LazyLock::new(|| Template::text(b"<aab>"));
    static EMPTY: Template = Template::EMPTY;

    fn one(from: &str, once: bool, body: &str) -> String {
        String::from_utf8(replaced(&[(from, &ONE)], once, &[body.as_bytes()])).unwrap()
    }

    #[test]
    fn a_text_is_replaced_in_any_case() {
        assert_eq!(one("Ab", false, "xaByAb ab"), "x1y1 1");
        assert_eq!(one("ab", true, "xaByab"), "x1yab");
        assert_eq!(one("aab", false, "aaab"), "a1");
        assert_eq!(one("ab", false, "a"), "a");
    }

    #[test]
    fn the_first_match_wins_and_then_the_first_configured_string() {
        let pairs: &[(&str, &'static Template)] = &[("bcd", &ONE), ("ab", &LONG), ("abc", &EMPTY)];
        assert_eq!(replaced(pairs, false, &[b"abcd bcd"]), b"<aab>cd 1");
        // An incomplete match at the end of the body does not hide another one.
        let pairs: &[(&str, &'static Template)] = &[("abcd", &ONE), ("b", &LONG)];
        assert_eq!(replaced(pairs, false, &[b"abc"]), b"a<aab>c");
    }

    #[test]
    fn each_byte_is_compared_a_few_times() {
        let (run, long) = ("a".repeat(1000), "a".repeat(100_000));
        let from = format!("{run}b{run}");
        let mut search = Search::new(false);
        search.add(from.as_bytes(), &ONE);
        for piece in long.as_bytes().chunks(10) {
            search.read(Bytes::copy_from_slice(piece), &mut |_| Bytes::new(), &mut |_| ());
        }
        search.end(&mut |_| Bytes::new(), &mut |_| ());
        let compared = search.texts[0].compared;
        assert!(compared < 4 * long.len(), "{compared}");
    }

    /// Replaces without knowledge of earlier comparisons.
    fn replaced_plainly(pairs: &[(&str, &'static Template)], mut body: &[u8]) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(&byte) = body.first() {
            let here = |(from, _): &&(&str, _)| {
                body.get(..from.len()).is_some_and(|at| at.eq_ignore_ascii_case(from.as_bytes()))
            };
            match pairs.iter().find(here) {
                Some((from, to)) => {
                    all.extend_from_slice(&to.shared().unwrap_or_default());
                    body = &body[from.len()..];
                }
                None => {
                    all.push(byte);
                    body = &body[1..];
                }
            }
        }
        all
    }

    #[test]
    fn short_pieces_go_out_together() {
        let mut out = Joined::default();
        for n in 0..1000 {
            out.push(Bytes::from(vec![b'x'; n % 10]));
        }
        out.push(Bytes::from(vec![b'y'; SHORT]));
        out.push(Bytes::from_static(b"end"));
        let lengths: Vec<u64> = out.into_chain().segments().map(Segment::len).collect();
        assert_eq!(lengths, [4500, SHORT as u64, 3]);
    }

    #[test]
    fn an_empty_replacement_removes() {
        assert_eq!(replaced(&[("ab", &EMPTY)], true, &[b"abcab"]), b"cab");
    }

    #[test]
    fn wrong_lines_are_refused() {
        assert_eq!(complaint("sub_filter '' b;"), "empty search pattern");
        let many: String = (0..256).map(|n| format!("sub_filter a{n} b; ")).collect();
        assert_eq!(complaint(&many), "number of search patterns exceeds 255");
    }

    proptest! {
        #[test]
        fn long_strings_with_repetitions_are_found(
            body in "((a{0,12}b){0,3}A{0,30}){0,6}",
            from in prop::collection::vec("(a{1,12}b?){1,3}a{0,12}", 1..4),
            size in 1usize..40,
        ) {
            let values: [&'static Template; 3] = [&ONE, &LONG, &EMPTY];
            let pairs: Vec<_> = from.iter().map(String::as_str).zip(values).collect();
            let pieces: Vec<&[u8]> = body.as_bytes().chunks(size).collect();
            let plain = replaced_plainly(&pairs, body.as_bytes());
            prop_assert_eq!(replaced(&pairs, false, &pieces), plain);
        }

        #[test]
        fn cutting_a_body_changes_nothing(
            body in "[abAB]{0,40}",
            from in prop::collection::vec("[ab]{1,5}", 1..4),
            once in any::<bool>(),
            cuts in prop::collection::vec(0usize..40, 0..6),
        ) {
            let values: [&'static Template; 3] = [&ONE, &LONG, &EMPTY];
            let pairs: Vec<_> = from.iter().map(String::as_str).zip(values).collect();
            let body = body.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|at| at.min(body.len())).collect();
            cuts.sort_unstable();
            cuts.push(body.len());
            let mut pieces = Vec::new();
            let mut from = 0;
            for at in cuts {
                pieces.push(&body[from..at]);
                from = at;
            }
            prop_assert_eq!(
                replaced(&pairs, once, &pieces),
                replaced(&pairs, once, &[body])
            );
        }
    }
}
