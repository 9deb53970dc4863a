//! The filters of rules, as directives of a location.

use weir_conf::Directive;

use super::objects::{Cors, Filter, HeaderChange, Mirror, PathChange, Redirect, UrlRewrite};
use crate::annotations::values;
use crate::report::ObjectId;
use crate::translate::{Work, digest, header_line, line, when};

/// The filters of a rule, followed by those of a backend.
#[derive(Clone, Default)]
pub(super) struct Actions<'a> {
    /// Headers for the backend: name, and value with variables.
    pub(super) headers: Vec<(String, String)>,
    /// Directives about headers of the answer.
    pub(super) answer: Vec<Directive>,
    pub(super) mirrors: Vec<&'a Mirror>,
    pub(super) redirect: Option<&'a Redirect>,
    pub(super) rewrite: Option<&'a UrlRewrite>,
    pub(super) cors: Option<&'a Cors>,
}

/// A text as a word in which a dollar does not begin a variable.
pub(super) fn literal(text: &str) -> String {
    text.replace('$', "${dollar}")
}

/// Checks a text for the value of a header.
fn text(value: &str) -> Result<&str, String> {
    match value.len() <= values::LONGEST && !value.contains(char::is_control) {
        true => Ok(value),
        false => Err("a header's value is too long or has control characters".to_owned()),
    }
}

fn header(name: &str) -> Result<&str, String> {
    match values::is_free_header(name) {
        true => Ok(name),
        false => Err(format!("\"{name}\" is no name of a header that weir takes")),
    }
}

impl<'a> Actions<'a> {
    /// Adds filters. An error if one of them cannot be obeyed.
    pub(super) fn read(
        &mut self,
        work: &mut Work<'_>,
        filters: &'a [Filter],
    ) -> Result<(), String> {
        for filter in filters {
            let missing = || format!("the filter {} says nothing", filter.r#type);
            match filter.r#type.as_str() {
                "RequestHeaderModifier" => {
                    self.request(
                        work,
                        filter.request_header_modifier.as_ref().ok_or_else(missing)?,
                    )?;
                }
                "ResponseHeaderModifier" => {
                    self.answer(filter.response_header_modifier.as_ref().ok_or_else(missing)?)?;
                }
                "RequestMirror" => {
                    self.mirrors.push(filter.request_mirror.as_ref().ok_or_else(missing)?);
                }
                "RequestRedirect" => {
                    let redirect = filter.request_redirect.as_ref().ok_or_else(missing)?;
                    check_redirect(redirect)?;
                    self.redirect = Some(redirect);
                }
                "URLRewrite" => {
                    let rewrite = filter.url_rewrite.as_ref().ok_or_else(missing)?;
                    check_host(rewrite.hostname.as_deref())?;
                    rewrite.path.as_ref().map_or(Ok(()), check_path)?;
                    self.rewrite = Some(rewrite);
                }
                "CORS" => {
                    let cors = filter.cors.as_ref().ok_or_else(missing)?;
                    check_cors(cors)?;
                    self.cors = Some(cors);
                }
                other => return Err(format!("the filter {other} is not supported")),
            }
        }
        Ok(())
    }

    fn request(&mut self, work: &mut Work<'_>, change: &HeaderChange) -> Result<(), String> {
        for one in &change.set {
            let (name, value) = (header(&one.name)?, literal(text(&one.value)?));
            self.put(name, value);
        }
        for one in &change.add {
            let (name, value) = (header(&one.name)?, literal(text(&one.value)?));
            let before = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
            let before = match before {
                Some((_, text)) if text.is_empty() => String::new(),
                Some((_, text)) => format!("{text},"),
                None => with_comma(work, name),
            };
            self.put(name, format!("{before}{value}"));
        }
        for name in &change.remove {
            self.put(header(name)?, String::new());
        }
        Ok(())
    }

    fn put(&mut self, name: &str, value: String) {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value));
    }

    fn answer(&mut self, change: &HeaderChange) -> Result<(), String> {
        for one in &change.set {
            let text = format!("{}: {}", header(&one.name)?, literal(text(&one.value)?));
            self.answer.push(header_line("more_set_headers", &text));
        }
        for one in &change.add {
            let value = literal(text(&one.value)?);
            self.answer.push(line("add_header", [header(&one.name)?, &value, "always"]));
        }
        for name in &change.remove {
            self.answer.push(header_line("more_clear_headers", header(name)?));
        }
        Ok(())
    }

    /// The directives of a location about headers of the answer. `hide` is the directive that hides
    /// those of the backend.
    pub(super) fn answer_lines(&self, work: &mut Work<'_>, hide: &str) -> Vec<Directive> {
        let mut list = self.answer.clone();
        let Some(cors) = self.cors else { return list };
        let names = [
            "Allow-Origin",
            "Allow-Credentials",
            "Expose-Headers",
            "Allow-Methods",
            "Allow-Headers",
            "Max-Age",
        ];
        if !hide.is_empty() {
            list.extend(names.map(|name| line(hide, [format!("Access-Control-{name}").as_str()])));
        }
        let origin = origin(work, cors);
        list.push(line("add_header", ["Access-Control-Allow-Origin", &origin, "always"]));
        list.push(line("add_header", ["Vary", "Origin", "always"]));
        list.extend(credentials(cors));
        list
    }
}

/// A variable with the client's header and a comma, or empty without the header.
fn with_comma(work: &mut Work<'_>, name: &str) -> String {
    let stem = name.to_ascii_lowercase().replace('-', "_");
    let (header, sum) = (format!("$http_{stem}"), format!("$sum_{stem}"));
    let rows = vec![line("", [""]), line("default", [format!("{header},").as_str()])];
    work.shared
        .insert(format!("map {sum}"), vec![line("map", [header.as_str(), &sum]).with_block(rows)]);
    format!("${{sum_{stem}}}")
}

fn check_host(host: Option<&str>) -> Result<(), String> {
    match host.is_none_or(|host| values::is_host(host, false)) {
        true => Ok(()),
        false => Err("a hostname is no host name".to_owned()),
    }
}

fn check_path(change: &PathChange) -> Result<(), String> {
    let path = match change.r#type.as_str() {
        "ReplaceFullPath" => change.replace_full_path.as_deref(),
        "ReplacePrefixMatch" => change.replace_prefix_match.as_deref(),
        other => return Err(format!("the path change {other} is not supported")),
    };
    let path = path.unwrap_or_default();
    let good = (path.is_empty() || path.starts_with('/'))
        && path.len() <= values::LONGEST
        && !path.contains(|c: char| c.is_control() || c == ' ' || c == '?' || c == '#');
    if good { Ok(()) } else { Err("a path is not one that weir takes".to_owned()) }
}

fn check_redirect(redirect: &Redirect) -> Result<(), String> {
    check_host(redirect.hostname.as_deref())?;
    redirect.path.as_ref().map_or(Ok(()), check_path)?;
    if !redirect.scheme.as_deref().is_none_or(|scheme| matches!(scheme, "http" | "https")) {
        return Err("a redirect goes to http or https".to_owned());
    }
    match redirect.status_code.unwrap_or(302) {
        301 | 302 | 303 | 307 | 308 => Ok(()),
        code => Err(format!("the status {code} is no redirect")),
    }
}

fn check_cors(cors: &Cors) -> Result<(), String> {
    let is_origin = |text: &String| {
        text == "*"
            || text.split_once("://").is_some_and(|(scheme, host)| {
                values::of(scheme, "+-.")
                    && host.len() <= 253
                    && values::of(host, ".-:*[]")
                    && !host.is_empty()
            })
    };
    if let Some(bad) = cors.allow_origins.iter().find(|text| !is_origin(text)) {
        return Err(format!("\"{bad}\" is no origin"));
    }
    let mut names =
        cors.allow_methods.iter().chain(&cors.allow_headers).chain(&cors.expose_headers);
    match names.find(|name| name.as_str() != "*" && !values::is_header(name)) {
        Some(bad) => Err(format!("\"{bad}\" is neither a method nor a header")),
        None => Ok(()),
    }
}

/// The value of `Access-Control-Allow-Origin`. It is empty for an origin that is not allowed.
fn origin(work: &mut Work<'_>, cors: &Cors) -> String {
    let with_credentials = cors.allow_credentials == Some(true);
    let any = cors.allow_origins.iter().any(|origin| origin == "*");
    if any {
        return if with_credentials { "$http_origin" } else { "*" }.to_owned();
    }
    let mut rows: Vec<Directive> = Vec::new();
    for origin in &cors.allow_origins {
        let key = match origin.contains('*') {
            true => format!("~^{}$", pcre2::escape(origin).replace("\\*", "[^/]+")),
            false => origin.clone(),
        };
        rows.push(line(&key, ["$http_origin"]));
    }
    rows.sort_by(|a, b| a.name.bytes.cmp(&b.name.bytes));
    rows.dedup_by(|a, b| a.name.bytes.eq_ignore_ascii_case(&b.name.bytes));
    rows.push(line("default", [""]));
    let name = format!("$cors_{}", digest(cors.allow_origins.join("\n").as_bytes()));
    work.shared
        .insert(format!("map {name}"), vec![line("map", ["$http_origin", &name]).with_block(rows)]);
    name
}

fn credentials(cors: &Cors) -> Vec<Directive> {
    let mut list = Vec::new();
    let mut add = |name: &str, value: &str| list.push(line("add_header", [name, value, "always"]));
    if cors.allow_credentials == Some(true) {
        add("Access-Control-Allow-Credentials", "true");
    }
    // With credentials, `*` is no wildcard for browsers, but the name of a header.
    let exposed: Vec<&str> = cors.expose_headers.iter().map(String::as_str).collect();
    if !exposed.is_empty() {
        add("Access-Control-Expose-Headers", &exposed.join(", "));
    }
    list
}

/// The location that answers CORS preflight requests.
pub(super) fn preflight(work: &mut Work<'_>, cors: &Cors) -> Vec<Directive> {
    let with_credentials = cors.allow_credentials == Some(true);
    let words = |list: &[String], asked: &'static str| -> Option<String> {
        match list.iter().any(|word| word == "*") {
            true => Some(if with_credentials { asked } else { "*" }.to_owned()),
            false => (!list.is_empty()).then(|| list.join(", ")),
        }
    };
    let origin = origin(work, cors);
    let mut list = Vec::new();
    if origin.starts_with("$cors_") {
        list.push(when(&origin, "!~", ".", vec![line("return", ["403"])]));
    }
    let age = cors.max_age.unwrap_or(5).to_string();
    let values = [
        ("Allow-Origin", Some(origin)),
        ("Allow-Methods", words(&cors.allow_methods, "$http_access_control_request_method")),
        ("Allow-Headers", words(&cors.allow_headers, "$http_access_control_request_headers")),
        ("Max-Age", Some(age)),
    ];
    for (name, value) in values {
        let name = format!("Access-Control-{name}");
        list.extend(value.map(|value| line("add_header", [name.as_str(), &value, "always"])));
    }
    list.push(line("add_header", ["Vary", "Origin", "always"]));
    list.extend(credentials(cors));
    list.push(line("return", ["204"]));
    list
}

/// The replacement of a prefix: for the prefix itself, and for paths below it.
struct Replaced {
    itself: String,
    below: String,
}

fn replaced(text: &str) -> Replaced {
    let itself = if text.is_empty() { "/".to_owned() } else { literal(text) };
    Replaced { itself, below: literal(text.trim_end_matches('/')) }
}

/// The directives that change the path for the backend. `prefixes` are the rule's, longest first,
/// without a trailing slash.
pub(super) fn rewrite(change: &PathChange, prefixes: &[&str]) -> Vec<Directive> {
    if change.r#type == "ReplaceFullPath" {
        let path = change.replace_full_path.as_deref().filter(|path| !path.is_empty());
        return vec![line("rewrite", ["^", &literal(path.unwrap_or("/")), "break"])];
    }
    let to = replaced(change.replace_prefix_match.as_deref().unwrap_or_default());
    let mut list = Vec::new();
    for prefix in prefixes {
        let stem = pcre2::escape(prefix);
        if !prefix.is_empty() {
            list.push(line("rewrite", [format!("^{stem}$").as_str(), &to.itself, "break"]));
        }
        let below = format!("(?s)^{stem}/(.*)$");
        list.push(line("rewrite", [below.as_str(), &format!("{}/$1", to.below), "break"]));
    }
    list
}

/// The context of a redirect: the route, the listener's scheme and port, and the rule's prefixes, longest
/// first.
pub(super) struct Origin<'a> {
    pub(super) route: &'a ObjectId,
    pub(super) tls: bool,
    pub(super) port: u16,
    pub(super) prefixes: Vec<&'a str>,
}

/// The directives of a redirect.
pub(super) fn redirect(work: &mut Work<'_>, wanted: &Redirect, at: &Origin<'_>) -> Vec<Directive> {
    let own = if at.tls { "https" } else { "http" };
    let scheme = wanted.scheme.as_deref().unwrap_or(own);
    let usual = if scheme == "https" { 443 } else { 80 };
    let port = wanted.port.unwrap_or(if wanted.scheme.is_some() { usual } else { at.port });
    let port = if port == usual { String::new() } else { format!(":{port}") };
    let host = wanted.hostname.as_deref().map_or_else(|| "$host".to_owned(), str::to_owned);
    let mut list = Vec::new();
    let path = match &wanted.path {
        None => "$request_uri".to_owned(),
        Some(change) if change.r#type == "ReplaceFullPath" => {
            let path =
                change.replace_full_path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/");
            format!("{}$is_args$args", literal(path))
        }
        Some(change) => {
            let to = change.replace_prefix_match.as_deref().unwrap_or_default();
            let name = moved_path(work, at, to);
            // The prefix cannot be cut off if the client sent it in another spelling.
            list.push(when(&name, "!~", ".", vec![line("return", ["400"])]));
            name
        }
    };
    let code = wanted.status_code.unwrap_or(302).to_string();
    list.push(line("return", [code.as_str(), &format!("{scheme}://{host}{port}{path}")]));
    list
}

/// A variable with the client's path and query after the replacement of a prefix.
fn moved_path(work: &mut Work<'_>, at: &Origin<'_>, text: &str) -> String {
    let prefixes = &at.prefixes;
    let name =
        format!("$moved_{}", digest(format!("{}\n\n{text}", prefixes.join("\n")).as_bytes()));
    let to = replaced(text);
    let mut rows = Vec::new();
    for prefix in prefixes {
        let stem = pcre2::escape(prefix);
        if !prefix.is_empty() {
            let itself = format!("~^{stem}(\\?.*)?$");
            rows.push(line(&itself, [format!("{}$1", to.itself).as_str()]));
        }
        let below = format!("~^{stem}/(.*)$");
        rows.push(line(&below, [format!("{}/$1", to.below).as_str()]));
    }
    rows.push(line("default", [""]));
    let map = line("map", ["$request_uri", &name]).with_block(rows);
    work.share(at.route, format!("map {name}"), vec![map]);
    name
}
