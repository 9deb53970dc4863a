//! The matches of routes, in the specification's order of precedence, as locations with lines of
//! `route`.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use weir_conf::Directive;

use super::objects::{GrpcMatch, HttpMatch, NamedValue};
use crate::annotations::values;
use crate::translate::line;

/// How a path is matched.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Path {
    Exact(String),
    Pattern(String),
    /// Without a trailing slash; empty for all paths.
    Prefix(String),
}

/// One match of a rule.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) path: Path,
    /// Conditions beside the path, as words of `route`.
    conditions: Vec<String>,
    /// The conditions of a CORS preflight request for this match, if the rule has a CORS filter.
    preflight: Option<Vec<String>>,
    /// The precedence of the conditions; greater comes first.
    weight: (usize, bool, usize, usize),
    /// The number of the rule, in order of age.
    pub(super) rule: usize,
    /// The rank of the route among those of a name. All entries of a lower rank come first.
    pub(super) rank: usize,
}

impl Entry {
    pub(super) fn of_rank(&self, rank: usize) -> Entry {
        Entry { rank, ..self.clone() }
    }
}

/// Why a value cannot be used, for people.
type Unusable = String;

/// A text that can be a word: not too long, and without control characters.
fn checked(text: &str) -> Result<&str, Unusable> {
    match text.len() <= values::LONGEST && !text.contains(char::is_control) {
        true => Ok(text),
        false => Err("a value is too long or has control characters".to_owned()),
    }
}

/// A pattern that must match all of a text.
fn whole(pattern: &str) -> Result<String, Unusable> {
    let whole = format!("^(?:{})$", checked(pattern)?);
    values::pattern(&whole).map(|()| whole)
}

/// The word of `route` for a header or a query parameter.
fn named(kind: &str, one: &NamedValue) -> Result<String, Unusable> {
    let name = checked(&one.name)?;
    if name.is_empty() || name.contains([':', ' ']) {
        return Err(format!("\"{name}\" is no name"));
    }
    match one.r#type.as_deref().unwrap_or("Exact") {
        "Exact" => Ok(format!("{kind}={name}:{}", checked(&one.value)?)),
        "RegularExpression" => Ok(format!("{kind}~{name}:{}", whole(&one.value)?)),
        other => Err(format!("the match type {other} is not supported")),
    }
}

/// The words for several values. If a name comes twice, the first counts.
fn all_named(kind: &str, list: &[NamedValue]) -> Result<Vec<String>, Unusable> {
    let mut seen = BTreeSet::new();
    let first = |one: &&NamedValue| {
        let name = if kind == "header" { one.name.to_ascii_lowercase() } else { one.name.clone() };
        seen.insert(name)
    };
    list.iter().filter(first).map(|one| named(kind, one)).collect()
}

const METHODS: &[&str] =
    &["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// A match of an HTTPRoute.
pub(super) fn http(found: &HttpMatch, rule: usize, cors: bool) -> Result<Entry, Unusable> {
    let path = found.path.as_ref();
    let text = path.and_then(|path| path.value.as_deref()).unwrap_or("/");
    let text = checked(text)?;
    let path = match path.and_then(|path| path.r#type.as_deref()).unwrap_or("PathPrefix") {
        "RegularExpression" => Path::Pattern(whole(text)?),
        _ if !text.starts_with('/') => {
            return Err(format!("the path \"{text}\" has no slash in front"));
        }
        "Exact" => Path::Exact(text.to_owned()),
        "PathPrefix" => Path::Prefix(text.trim_end_matches('/').to_owned()),
        other => return Err(format!("the path type {other} is not supported")),
    };
    let mut conditions = Vec::new();
    if let Some(method) = &found.method {
        if !METHODS.contains(&method.as_str()) {
            return Err(format!("the method {method} is not supported"));
        }
        conditions.push(format!("method={method}"));
    }
    let (headers, args) =
        (all_named("header", &found.headers)?, all_named("arg", &found.query_params)?);
    let weight = (0, found.method.is_some(), headers.len(), args.len());
    let preflight = cors.then(|| {
        let asked = match &found.method {
            Some(method) => format!("header=Access-Control-Request-Method:{method}"),
            None => "header~Access-Control-Request-Method:.".to_owned(),
        };
        // Browsers send a preflight without the headers of the request.
        let mut words = vec!["method=OPTIONS".to_owned(), "header~Origin:.".to_owned(), asked];
        words.extend(args.iter().cloned());
        words
    });
    conditions.extend(headers);
    conditions.extend(args);
    Ok(Entry { path, conditions, preflight, weight, rule, rank: 0 })
}

/// A match of a GRPCRoute. The path of a call is `/SERVICE/METHOD`.
pub(super) fn grpc(found: &GrpcMatch, rule: usize) -> Result<Entry, Unusable> {
    let headers = all_named("header", &found.headers)?;
    let method = found.method.as_ref();
    let service = method.and_then(|m| m.service.as_deref()).filter(|s| !s.is_empty());
    let call = method.and_then(|m| m.method.as_deref()).filter(|m| !m.is_empty());
    let mut conditions = Vec::new();
    let kind = method.and_then(|m| m.r#type.as_deref()).unwrap_or("Exact");
    let path = match (kind, service, call) {
        (_, None, None) => Path::Prefix(String::new()),
        ("Exact", Some(service), Some(call)) => {
            Path::Exact(format!("/{}/{}", checked(service)?, checked(call)?))
        }
        ("Exact", Some(service), None) => Path::Prefix(format!("/{}", checked(service)?)),
        ("Exact", None, Some(call)) => {
            let literal = pcre2::escape(checked(call)?);
            conditions.push(format!("uri~^/[^/]+/{literal}$"));
            Path::Prefix(String::new())
        }
        ("RegularExpression", service, call) => {
            let any = "[^/]+";
            let pattern = format!(
                "/(?:{})/(?:{})",
                checked(service.unwrap_or(any))?,
                checked(call.unwrap_or(any))?
            );
            conditions.push(format!("uri~{}", whole(&pattern)?));
            Path::Prefix(String::new())
        }
        (other, _, _) => return Err(format!("the match type {other} is not supported")),
    };
    let chars = (service.map_or(0, str::len) << 16) + call.map_or(0, str::len);
    let weight = (if conditions.is_empty() { 0 } else { chars }, false, headers.len(), 0);
    conditions.extend(headers);
    Ok(Entry { path, conditions, preflight: None, weight, rule, rank: 0 })
}

/// Sorts entries by precedence: the first that matches a request counts.
pub(super) fn sort(list: &mut [Entry]) {
    list.sort_by_cached_key(|entry| {
        let (class, length) = match &entry.path {
            Path::Exact(path) => (0, path.len()),
            Path::Pattern(pattern) => (1, pattern.len()),
            Path::Prefix(path) => (2, path.len()),
        };
        (entry.rank, class, Reverse(length), Reverse(entry.weight), entry.rule)
    });
}

/// A location.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// `location = PATH`
    Exact(String),
    /// `location ~ PATTERN`, in the order of entries.
    Pattern(usize),
    /// `location PATH/`
    Below(String),
}

/// The most entries whose lines a location has itself. The lines of all others are in [`REST`].
/// Without a bound, n patterns with conditions would have n * n lines.
const OWN_ENTRIES: usize = 32;

/// The most bytes of these lines, apart from the first entry's. Patterns may be long, and each
/// location would repeat them.
const OWN_BYTES: usize = 2048;

/// The named location with the lines of all entries of a server.
const REST: &str = "@rest";

/// Entries by their paths. Numbers of entries are in their order.
#[derive(Default)]
struct Index<'e> {
    exact: HashMap<&'e str, Vec<usize>>,
    below: HashMap<&'e str, Vec<usize>>,
    /// The first entry of each pattern.
    first: HashMap<&'e str, usize>,
    patterns: Vec<usize>,
    prefixes: Vec<usize>,
}

impl<'e> Index<'e> {
    fn of(entries: &'e [Entry]) -> Index<'e> {
        let mut index = Index::default();
        for (number, entry) in entries.iter().enumerate() {
            match &entry.path {
                Path::Exact(path) => index.exact.entry(path).or_default().push(number),
                Path::Prefix(stem) => {
                    index.below.entry(stem).or_default().push(number);
                    index.prefixes.push(number);
                }
                Path::Pattern(pattern) => {
                    index.first.entry(pattern).or_insert(number);
                    index.patterns.push(number);
                }
            }
        }
        index
    }

    /// The first entries that may match a request in a place: at most one more than
    /// [`OWN_ENTRIES`].
    fn candidates(&self, place: &Place) -> Vec<usize> {
        let mut lists: Vec<&[usize]> = Vec::new();
        match place {
            Place::Exact(path) => {
                lists.extend(self.exact.get(path.as_str()).map(Vec::as_slice));
                lists.push(&self.patterns);
                lists.extend(self.above(path));
            }
            // Patterns are tried in order. Those before this one did not match.
            Place::Pattern(first) => {
                let from = self.patterns.partition_point(|number| number < first);
                lists.extend([&self.patterns[from..], &self.prefixes]);
            }
            // Patterns take precedence over prefixes, and each exact path has its own location.
            Place::Below(path) => lists.extend(self.above(path)),
        }
        let starts = lists.into_iter().flat_map(|list| list.iter().take(OWN_ENTRIES + 1).copied());
        let mut found: Vec<usize> = starts.collect();
        found.sort_unstable();
        found.truncate(OWN_ENTRIES + 1);
        found
    }

    /// The entries of all prefixes of a path.
    fn above(&self, path: &str) -> impl Iterator<Item = &[usize]> {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        let stems = ends.filter_map(|end| path.get(..end));
        stems.filter_map(|stem| self.below.get(stem).map(Vec::as_slice))
    }
}

/// Makes the `route` lines of entries.
struct Lines<'l> {
    entries: &'l [Entry],
    /// The named locations of a rule with their weights, and that of its preflights.
    target: &'l dyn Fn(usize) -> (Vec<String>, Option<String>),
    mark: &'l mut dyn FnMut(usize, &mut Directive),
}

impl Lines<'_> {
    /// Adds the lines of an entry, which needs this condition on the path. Returns whether the
    /// entry matches all requests.
    fn add(&mut self, number: usize, path: Option<String>, list: &mut Vec<Directive>) -> bool {
        let Some(entry) = self.entries.get(number) else { return false };
        let (names, preflight) = (self.target)(entry.rule);
        let mut row = |conditions: &[String], names: &[String]| {
            let words = path.iter().chain(conditions).chain(names);
            let mut row = line("route", words.map(String::as_str));
            (self.mark)(entry.rule, &mut row);
            row
        };
        if let (Some(conditions), Some(name)) = (&entry.preflight, preflight) {
            list.push(row(conditions, &[name]));
        }
        list.push(row(&entry.conditions, &names));
        path.is_none() && entry.conditions.is_empty()
    }

    /// The lines of a place, down to the first entry without a condition. Returns whether requests
    /// that match none of them go on to [`REST`].
    fn of_place(&mut self, index: &Index<'_>, place: &Place) -> (Vec<Directive>, bool) {
        let mut list = Vec::new();
        for (n, number) in index.candidates(place).into_iter().enumerate() {
            let Some(entry) = self.entries.get(number) else { continue };
            let before = list.len();
            let all = self.add(number, condition(self.entries, place, entry), &mut list);
            if n == OWN_ENTRIES || n > 0 && bytes(&list) > OWN_BYTES {
                list.truncate(before);
                list.push(line("route", [REST]));
                return (list, true);
            }
            if all {
                break;
            }
        }
        (list, false)
    }

    /// The lines of all entries, with their paths as conditions. Those of a place that have not
    /// matched do not match here either.
    fn of_all(&mut self) -> Vec<Directive> {
        let mut list = Vec::new();
        for (number, entry) in self.entries.iter().enumerate() {
            let path = match &entry.path {
                Path::Exact(path) => Some(format!("uri={path}")),
                Path::Pattern(pattern) => Some(format!("uri~{pattern}")),
                Path::Prefix(stem) => (!stem.is_empty()).then(|| format!("uri^{stem}")),
            };
            if self.add(number, path, &mut list) {
                break;
            }
        }
        list
    }
}

/// The bytes of the words of these lines.
fn bytes(list: &[Directive]) -> usize {
    list.iter().flat_map(|line| &line.args).map(|word| word.bytes.len()).sum()
}

/// The locations of a server. `target` gives the named locations of a rule with their weights, and
/// that of its preflights.
pub(super) fn locations(
    entries: &[Entry],
    target: &dyn Fn(usize) -> (Vec<String>, Option<String>),
    missing: &str,
    mark: &mut dyn FnMut(usize, &mut Directive),
) -> Vec<Directive> {
    let index = Index::of(entries);
    let mut lines = Lines { entries, target, mark };
    let (mut list, mut has_rest) = (Vec::new(), false);
    let end = |mut list: Vec<Directive>| {
        list.push(line("return", [missing]));
        list
    };
    for place in places(entries, &index) {
        let (inside, goes_on) = lines.of_place(&index, &place);
        has_rest |= goes_on;
        let pattern = match &place {
            Place::Pattern(number) => entries.get(*number),
            Place::Exact(_) | Place::Below(_) => None,
        };
        let words = match (&place, pattern.map(|entry| &entry.path)) {
            (Place::Exact(path), _) => vec!["=".to_owned(), path.clone()],
            (Place::Below(path), _) => vec![format!("{path}/")],
            (Place::Pattern(_), Some(Path::Pattern(pattern))) => {
                vec!["~".to_owned(), pattern.clone()]
            }
            (Place::Pattern(_), _) => continue,
        };
        let words = words.iter().map(String::as_str);
        let mut location = line("location", words).with_block(end(inside));
        // A pattern belongs to one rule.
        if let Some(entry) = pattern {
            (lines.mark)(entry.rule, &mut location);
        }
        list.push(location);
    }
    list.extend(has_rest.then(|| line("location", [REST]).with_block(end(lines.of_all()))));
    list
}

/// The places that the entries need.
fn places(entries: &[Entry], index: &Index<'_>) -> BTreeSet<Place> {
    let mut places = BTreeSet::from([Place::Below(String::new())]);
    for entry in entries {
        match &entry.path {
            Path::Exact(path) => drop(places.insert(Place::Exact(path.clone()))),
            Path::Pattern(pattern) => {
                places.extend(index.first.get(pattern.as_str()).copied().map(Place::Pattern));
            }
            Path::Prefix(path) => {
                places.insert(Place::Below(path.clone()));
                if !path.is_empty() {
                    places.insert(Place::Exact(path.clone()));
                }
            }
        }
    }
    places
}

/// The condition on the path that a candidate needs in a place. `None` if its path always matches
/// there.
fn condition(entries: &[Entry], place: &Place, entry: &Entry) -> Option<String> {
    match (place, &entry.path) {
        (Place::Exact(_), Path::Pattern(pattern)) => Some(format!("uri~{pattern}")),
        (Place::Pattern(first), Path::Pattern(pattern)) => {
            let same = entries.get(*first).is_some_and(|one| one.path == entry.path);
            (!same).then(|| format!("uri~{pattern}"))
        }
        (Place::Pattern(_), Path::Prefix(stem)) if !stem.is_empty() => Some(format!("uri^{stem}")),
        _ => None,
    }
}
