//! The matches of routes, in the specification's order of precedence, as locations with lines of
//! `route`.

use std::cmp::Reverse;
use std::collections::BTreeSet;

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

/// The locations of a server. `target` gives the named locations of a rule with their weights, and
/// that of its preflights.
pub(super) fn locations(
    entries: &[Entry],
    target: &dyn Fn(usize) -> (Vec<String>, Option<String>),
    missing: &str,
    mark: &mut dyn FnMut(usize, &mut Directive),
) -> Vec<Directive> {
    let mut places: BTreeSet<Place> = BTreeSet::new();
    places.insert(Place::Below(String::new()));
    for (number, entry) in entries.iter().enumerate() {
        match &entry.path {
            Path::Exact(path) => drop(places.insert(Place::Exact(path.clone()))),
            Path::Pattern(pattern) => {
                let first =
                    entries.iter().position(|one| one.path == Path::Pattern(pattern.clone()));
                places.insert(Place::Pattern(first.unwrap_or(number)));
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
        .iter()
        .map(|place| {
            let words = match place {
                Place::Exact(path) => vec!["=".to_owned(), path.clone()],
                Place::Pattern(number) => match entries.get(*number).map(|entry| &entry.path) {
                    Some(Path::Pattern(pattern)) => vec!["~".to_owned(), pattern.clone()],
                    _ => vec!["=".to_owned(), String::new()],
                },
                Place::Below(path) => vec![format!("{path}/")],
            };
            let mut list = rows(entries, place, target, mark);
            list.push(line("return", [missing]));
            let mut location = line("location", words.iter().map(String::as_str)).with_block(list);
            // A pattern belongs to one rule.
            if let Place::Pattern(number) = place
                && let Some(entry) = entries.get(*number)
            {
                mark(entry.rule, &mut location);
            }
            location
        })
        .collect()
}

/// The entries that may match a request in a place, down to the first one without a condition.
fn rows(
    entries: &[Entry],
    place: &Place,
    target: &dyn Fn(usize) -> (Vec<String>, Option<String>),
    mark: &mut dyn FnMut(usize, &mut Directive),
) -> Vec<Directive> {
    let mut list = Vec::new();
    for (number, entry) in entries.iter().enumerate() {
        let Some(path) = condition(entries, place, number, entry) else { continue };
        let (names, preflight) = target(entry.rule);
        let mut row = |conditions: &[String], names: &[String]| {
            let words = path.iter().chain(conditions).chain(names);
            let mut row = line("route", words.map(String::as_str));
            mark(entry.rule, &mut row);
            row
        };
        if let (Some(conditions), Some(name)) = (&entry.preflight, preflight) {
            list.push(row(conditions, &[name]));
        }
        list.push(row(&entry.conditions, &names));
        if path.is_none() && entry.conditions.is_empty() {
            break;
        }
    }
    list
}

/// The condition on the path that an entry needs in a place. `None` if it matches no request there,
/// `Some(None)` if its path always matches.
fn condition(
    entries: &[Entry],
    place: &Place,
    number: usize,
    entry: &Entry,
) -> Option<Option<String>> {
    let is_below = |path: &str, stem: &str| {
        path.strip_prefix(stem).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    match (place, &entry.path) {
        (Place::Exact(path), Path::Exact(wanted)) => (path == wanted).then_some(None),
        (Place::Exact(path), Path::Prefix(stem)) => is_below(path, stem).then_some(None),
        (Place::Exact(_), Path::Pattern(pattern)) => Some(Some(format!("uri~{pattern}"))),
        // Each exact path has its own location, which takes precedence.
        (Place::Pattern(_) | Place::Below(_), Path::Exact(_)) => None,
        (Place::Pattern(first), Path::Pattern(pattern)) => {
            let same = entries.get(*first).is_some_and(|one| one.path == entry.path);
            match (same, number < *first) {
                (true, _) => Some(None),
                // Patterns are tried in order. Those before this one did not match.
                (false, true) => None,
                (false, false) => Some(Some(format!("uri~{pattern}"))),
            }
        }
        (Place::Pattern(_), Path::Prefix(stem)) if stem.is_empty() => Some(None),
        (Place::Pattern(_), Path::Prefix(stem)) => Some(Some(format!("uri^{stem}"))),
        // Patterns take precedence over prefixes. None did match.
        (Place::Below(_), Path::Pattern(_)) => None,
        (Place::Below(path), Path::Prefix(stem)) => is_below(path, stem).then_some(None),
    }
}
