//! The parameters of a request: `fastcgi_param` and kin, and the client's headers under their CGI
//! names.

use std::cmp::Ordering;
use std::sync::Arc;

use bytes::Bytes;
use rustc_hash::FxHashSet;
use weir_conf::{Directive, Error};
use weir_proto::http1::{HeaderId, HeaderLine};
use weir_proto::pairs::Pairs;

use crate::config::scope::Scope;
use crate::request::Request;
use crate::variables::Variables;
use weir_values::Template;

/// The parameters of a location.
#[derive(Debug, Clone, Default)]
pub struct Params {
    /// `..._param`, as written.
    pub lines: Vec<Param>,
    plain: Arc<Compiled>,
    /// The same for requests whose answers may be stored.
    cached: Arc<Compiled>,
}

/// One `..._param`.
#[derive(Debug, Clone)]
pub struct Param {
    name: Bytes,
    value: Template,
    if_not_empty: bool,
}

/// Compiled lines.
#[derive(Debug, Clone, Default)]
struct Compiled {
    pieces: Vec<Piece>,
    /// Headers of the client that are not passed, by their CGI names without `HTTP_`.
    dropped: FxHashSet<Vec<u8>>,
}

/// A part of the encoded parameters.
#[derive(Debug, Clone)]
enum Piece {
    /// Encoded parameters that are the same for every request.
    Fixed(Vec<u8>),
    /// A parameter with variables.
    Computed(Param),
}

const PREFIX: &[u8] = b"HTTP_";
/// Room for most names of headers.
const NAME: usize = 64;

/// The requested host, normalised.
const HOST: (&str, &str) = ("HTTP_HOST", "$host$is_request_port$request_port");

/// Defaults for requests whose answers may be stored: no ranges, and conditions only for
/// revalidation.
const KEPT: [(&str, &str); 6] = [
    ("HTTP_IF_MODIFIED_SINCE", "$upstream_cache_last_modified"),
    ("HTTP_IF_UNMODIFIED_SINCE", ""),
    ("HTTP_IF_NONE_MATCH", "$upstream_cache_etag"),
    ("HTTP_IF_MATCH", ""),
    ("HTTP_RANGE", ""),
    ("HTTP_IF_RANGE", ""),
];

impl Param {
    /// `..._param NAME VALUE [if_not_empty]`
    pub fn read(s: &mut Scope<'_, '_>, d: &Directive) -> Result<Vec<Param>, Error> {
        let [name, value, more @ ..] = d.args.as_slice() else { return Ok(Vec::new()) };
        if let Some(word) = more.first().filter(|word| !word.is("if_not_empty")) {
            return Err(d.invalid("parameter", word));
        }
        let value = s.setup.template(d, value)?;
        let name = Bytes::copy_from_slice(&name.bytes);
        Ok(vec![Param { name, value, if_not_empty: !more.is_empty() }])
    }

    fn write<P: Pairs>(&self, r: &mut Request, out: &mut Vec<u8>) {
        let before = out.len();
        let value = P::name(&self.name, out);
        self.value.eval_into(r, out);
        if self.if_not_empty && out.len() == value.start {
            out.truncate(before);
        } else {
            P::end(value, out);
        }
    }
}

impl Params {
    /// Compiles the lines of a block. `P` is the encoding.
    pub fn finish<P: Pairs>(
        &mut self,
        variables: &mut Variables,
        caches: bool,
    ) -> Result<(), Error> {
        self.plain = Arc::new(Compiled::new::<P>(variables, &self.lines, &[HOST])?);
        if caches {
            let implied: Vec<_> = [HOST].into_iter().chain(KEPT).collect();
            self.cached = Arc::new(Compiled::new::<P>(variables, &self.lines, &implied)?);
        }
        Ok(())
    }

    /// Appends the parameters of a request, in the encoding of [`Params::finish`].
    pub fn write<P: Pairs>(&self, r: &mut Request, headers: bool, out: &mut Vec<u8>) {
        let compiled = if r.is_cacheable() { &self.cached } else { &self.plain };
        for piece in &compiled.pieces {
            match piece {
                Piece::Fixed(bytes) => out.extend_from_slice(bytes),
                Piece::Computed(param) => param.write::<P>(r, out),
            }
        }
        let all = if headers { r.head().headers.as_slice() } else { &[] };
        let places = places(all, &r.buf);
        let mut name = Vec::with_capacity(NAME);
        for (header, place) in all.iter().zip(&places) {
            name.clear();
            name.extend_from_slice(PREFIX);
            name.extend(header.name.of(&r.buf).iter().map(|b| cgi(*b)));
            if !place.first || compiled.dropped.contains(&name[PREFIX.len()..]) {
                continue;
            }
            let value = P::name(&name, out);
            out.extend_from_slice(header.value.of(&r.buf));
            let separator: &[u8] = if header.id == HeaderId::Cookie { b"; " } else { b", " };
            let mut next = place.next;
            while let Some(at) = next {
                out.extend_from_slice(separator);
                out.extend_from_slice(all[at].value.of(&r.buf));
                next = places[at].next;
            }
            P::end(value, out);
        }
    }
}

/// A byte of a header's name in CGI form.
fn cgi(byte: u8) -> u8 {
    if byte == b'-' { b'_' } else { byte.to_ascii_uppercase() }
}

/// The place of a header line among those of its name.
#[derive(Clone, Copy)]
struct HeaderPlace {
    /// It is the first of its name.
    first: bool,
    /// The next line of the same name.
    next: Option<usize>,
}

/// The places of all lines. Sorts them, since a client may send very many and comparing all pairs
/// would be quadratic.
fn places(all: &[HeaderLine], buf: &[u8]) -> Vec<HeaderPlace> {
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by(|&a, &b| by_name(&all[a], &all[b], buf));
    let mut places = vec![HeaderPlace { first: true, next: None }; all.len()];
    for pair in order.windows(2) {
        if by_name(&all[pair[0]], &all[pair[1]], buf).is_eq() {
            places[pair[0]].next = Some(pair[1]);
            places[pair[1]].first = false;
        }
    }
    places
}

/// An order that groups lines of the same name.
fn by_name(a: &HeaderLine, b: &HeaderLine, buf: &[u8]) -> Ordering {
    let lower = |header: &HeaderLine| header.name.of(buf).iter().map(u8::to_ascii_lowercase);
    match (a.id as u32).cmp(&(b.id as u32)) {
        Ordering::Equal if a.id == HeaderId::Other => {
            a.name.of(buf).len().cmp(&b.name.of(buf).len()).then_with(|| lower(a).cmp(lower(b)))
        }
        order => order,
    }
}

impl Compiled {
    fn new<P: Pairs>(
        variables: &mut Variables,
        own: &[Param],
        implied: &[(&'static str, &'static str)],
    ) -> Result<Compiled, Error> {
        let mut lines = own.to_vec();
        for (name, value) in implied {
            if !own.iter().any(|line| line.name.eq_ignore_ascii_case(name.as_bytes())) {
                let value = Template::new(variables, value.as_bytes()).map_err(Error::emerg)?;
                let name = Bytes::from_static(name.as_bytes());
                lines.push(Param { name, value, if_not_empty: true });
            }
        }
        let mut dropped = FxHashSet::default();
        lines.retain(|line| {
            let Some(header) = line.name.strip_prefix(PREFIX).filter(|h| !h.is_empty()) else {
                return true;
            };
            dropped.insert(header.to_ascii_uppercase());
            // A header with an empty value is left out.
            line.value.constant() != Some(b"")
        });
        let mut pieces = Vec::new();
        for line in lines {
            let Some(value) = line.value.constant() else {
                pieces.push(Piece::Computed(line));
                continue;
            };
            if line.if_not_empty && value.is_empty() {
                continue;
            }
            if !matches!(pieces.last(), Some(Piece::Fixed(_))) {
                pieces.push(Piece::Fixed(Vec::new()));
            }
            if let Some(Piece::Fixed(bytes)) = pieces.last_mut() {
                P::pair(&line.name, value, bytes);
            }
        }
        Ok(Compiled { pieces, dropped })
    }
}

/// The directive that sets a module's [`Params`], for a module with settings that have a field
/// `params`.
macro_rules! param_directive {
    ($key:ident, $prefix:literal) => {{
        fn settings<'s>(
            s: &'s mut $crate::config::scope::Scope<'_, '_>,
        ) -> &'s mut $crate::upstream::cgi::Params {
            &mut $key.change(&mut s.location).params
        }
        $crate::config::table::table! { $prefix, settings:
            "param": list(lines, $crate::upstream::cgi::Param::read),
                "A parameter of requests to servers.";
        }
    }};
}
pub(crate) use param_directive;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_proto::Span;

    use super::*;

    proptest! {
        #[test]
        fn lines_of_one_name_follow_each_other(
            names in prop::collection::vec(prop_oneof![Just("a"), Just("A"), Just("b"), Just("ab")], 0..12)
        ) {
            let (mut buf, mut all) = (Vec::new(), Vec::new());
            for name in &names {
                let start = buf.len() as u32;
                buf.extend_from_slice(name.as_bytes());
                let name = Span { start, end: buf.len() as u32 };
                all.push(HeaderLine { name, value: name, id: HeaderId::Other });
            }
            let same = |a: usize, b: usize| names[a].eq_ignore_ascii_case(names[b]);
            for (at, place) in places(&all, &buf).into_iter().enumerate() {
                prop_assert_eq!(place.first, !(0..at).any(|before| same(before, at)));
                prop_assert_eq!(place.next, (at + 1..all.len()).find(|&after| same(at, after)));
            }
        }
    }
}
