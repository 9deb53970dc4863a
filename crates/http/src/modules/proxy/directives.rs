//! The directives of `proxy`.

use weir_conf::{Directive as Line, Error, Word};
use weir_proto::http1::Version;

use super::CONTENT;
use super::conf::Conf;
use super::pass;
use super::rewriting::{self, CookieFlags, CookieName, Pattern, Rewrite};
use crate::config::scope::{Directive, Scope, Set};
use crate::modules::proxy::CONF;
use crate::upstream::passing::upstream_directives;
use weir_values::Template;

/// All directives of the module.
pub const DIRECTIVES: &[Directive] =
    upstream_directives!(CONF, "proxy_": OWN; passing, store, tls, cache);

const OWN: &[Directive] = &[
    Directive {
        name: "proxy_pass",
        help: "The server, or group of servers, that requests are passed to.",
        set: Set::Simple(pass::set),
    },
    Directive {
        name: "proxy_http_version",
        help: "The HTTP version of requests to servers.",
        set: Set::Simple(http_version),
    },
    Directive {
        name: "proxy_answer_timeout",
        help: "The time limit of all attempts together, until the head of a response; 0: no limit.",
        set: Set::Simple(answer_timeout),
    },
    Directive {
        name: "proxy_next_upstream_delay",
        help: "How long to wait before the next server is tried.",
        set: Set::Simple(retry_delay),
    },
    Directive {
        name: "proxy_method",
        help: "The method, in place of the client's.",
        set: Set::Simple(method),
    },
    Directive {
        name: "proxy_set_body",
        help: "The body, in place of the client's.",
        set: Set::Simple(set_body),
    },
    Directive {
        name: "proxy_set_header",
        help: "A header of requests to servers; with an empty value it is omitted.",
        set: Set::Simple(set_header),
    },
    Directive {
        name: "proxy_pass_trailers",
        help: "Whether trailers of responses are passed.",
        set: Set::Simple(pass_trailers),
    },
    Directive {
        name: "proxy_redirect",
        help: "Rewrites `Location` and `Refresh` for the client.",
        set: Set::Simple(redirect),
    },
    Directive {
        name: "proxy_cookie_domain",
        help: "Rewrites the domain of cookies for the client.",
        set: Set::Simple(cookie_domain),
    },
    Directive {
        name: "proxy_cookie_path",
        help: "Rewrites the path of cookies for the client.",
        set: Set::Simple(cookie_path),
    },
    Directive {
        name: "proxy_cookie_flags",
        help: "Flags that are added to cookies or removed from them.",
        set: Set::Simple(cookie_flags),
    },
    Directive {
        name: "proxy_headers_hash_max_size",
        help: "Accepted: weir sizes its tables itself.",
        set: Set::Simple(accepted),
    },
    Directive {
        name: "proxy_headers_hash_bucket_size",
        help: "Accepted: weir sizes its tables itself.",
        set: Set::Simple(accepted),
    },
];

/// Accepts a directive without effect. The tables of `conf` have checked its value.
fn accepted(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)
}

fn conf<'s>(s: &'s mut Scope<'_, '_>) -> &'s mut Conf {
    CONF.change(&mut s.location)
}

fn http_version(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let versions = [("1.0", Version::Http10), ("1.1", Version::Http11), ("2", Version::Http20)];
    conf(s).version = d.choice(&versions)?;
    Ok(())
}

fn answer_timeout(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    conf(s).passing.answer_timeout = d.duration()?;
    Ok(())
}

fn retry_delay(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    conf(s).passing.retry_delay = d.duration()?;
    Ok(())
}

fn method(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let Some(word) = d.args.first() else { return Ok(()) };
    conf(s).method = Some(s.setup.template(d, word)?);
    Ok(())
}

fn set_body(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let Some(word) = d.args.first() else { return Ok(()) };
    conf(s).body = Some(s.setup.template(d, word)?);
    Ok(())
}

fn set_header(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let [name, value] = d.args.as_slice() else { return Ok(()) };
    let value = s.setup.line(d, value)?;
    if s.first(d) {
        conf(s).set_headers.clear();
    }
    if let Some(name) = s.setup.line_name(d, name, &name.bytes) {
        conf(s).set_headers.push((name.into(), value));
    }
    Ok(())
}

fn pass_trailers(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    conf(s).passing.pass_trailers = d.flag()?;
    Ok(())
}

/// `proxy_redirect off | default | PATTERN REPLACEMENT`
fn redirect(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let first = s.first(d);
    if !first && conf(s).redirects.as_ref().is_some_and(Vec::is_empty) {
        return Err(d.problem("is duplicate"));
    }
    let inherited = if first { Vec::new() } else { conf(s).redirects.take().unwrap_or_default() };
    let mut rules = inherited;
    match d.args.as_slice() {
        [word] if word.is("off") && first => {}
        [word] if word.is("off") => return Err(d.problem("is duplicate")),
        [word] if word.is("default") => rules.push(default_redirect(s, d)?),
        [word] => return Err(d.invalid("parameter", word)),
        [pattern, replacement] => {
            let pattern = prefix_or_regex(s, d, pattern)?;
            let replacement = s.setup.line(d, replacement)?;
            rules.push(Rewrite { pattern, replacement });
        }
        _ => {}
    }
    conf(s).redirects = Some(rules);
    Ok(())
}

fn default_redirect(s: &mut Scope<'_, '_>, d: &Line) -> Result<Rewrite, Error> {
    let Some(pass) = CONTENT.of(&s.location.core.content) else {
        return Err(d.error(
            "\"proxy_redirect default\" should be placed after the \"proxy_pass\" directive",
        ));
    };
    rewriting::default_redirect(pass).ok_or_else(|| {
        d.error(
            "\"proxy_redirect default\" cannot be used with \"proxy_pass\" directive with variables",
        )
    })
}

fn prefix_or_regex(s: &mut Scope<'_, '_>, d: &Line, word: &Word) -> Result<Pattern, Error> {
    let (pattern, caseless) = match word.bytes.as_slice() {
        [b'~', b'*', pattern @ ..] => (pattern, true),
        [b'~', pattern @ ..] => (pattern, false),
        text => return Ok(Pattern::Prefix(s.setup.template_of(d, word, text)?)),
    };
    s.setup.regex(d, word, pattern, caseless).map(Pattern::Regex)
}

/// Clears the inherited list at the first line of a block. True for `off`, which leaves the list
/// empty and must be the only line.
fn off<T>(d: &Line, first: bool, list: &mut Vec<T>) -> Result<bool, Error> {
    if first {
        list.clear();
    } else if list.is_empty() {
        return Err(d.problem("is duplicate"));
    }
    match d.args.as_slice() {
        [word] if word.is("off") && first => Ok(true),
        [word] if word.is("off") => Err(d.problem("is duplicate")),
        [word] => Err(d.invalid("parameter", word)),
        _ => Ok(false),
    }
}

fn cookie_domain(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let first = s.first(d);
    if off(d, first, &mut conf(s).cookie_domains)? {
        return Ok(());
    }
    let [pattern, replacement] = d.args.as_slice() else { return Ok(()) };
    let undotted = |text: &[u8]| text.strip_prefix(b".").unwrap_or(text).to_vec();
    let rule = match pattern.bytes.strip_prefix(b"~") {
        Some(text) => Rewrite {
            pattern: Pattern::Regex(s.setup.regex(d, pattern, text, true)?),
            replacement: s.setup.line(d, replacement)?,
        },
        None => Rewrite {
            pattern: Pattern::Domain(s.setup.template_of(d, pattern, &undotted(&pattern.bytes))?),
            replacement: s.setup.line_of(d, replacement, &undotted(&replacement.bytes))?,
        },
    };
    conf(s).cookie_domains.push(rule);
    Ok(())
}

fn cookie_path(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let first = s.first(d);
    if off(d, first, &mut conf(s).cookie_paths)? {
        return Ok(());
    }
    let [pattern, replacement] = d.args.as_slice() else { return Ok(()) };
    let pattern = prefix_or_regex(s, d, pattern)?;
    let replacement = s.setup.line(d, replacement)?;
    conf(s).cookie_paths.push(Rewrite { pattern, replacement });
    Ok(())
}

fn cookie_flags(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let first = s.first(d);
    if off(d, first, &mut conf(s).cookie_flags)? {
        return Ok(());
    }
    let Some((name, flags)) = d.args.split_first() else { return Ok(()) };
    let name = match name.bytes.strip_prefix(b"~") {
        Some(text) => CookieName::Regex(s.setup.regex(d, name, text, true)?),
        None => CookieName::Is(s.setup.template(d, name)?),
    };
    let flags: Result<Vec<Template>, Error> =
        flags.iter().map(|w| s.setup.template(d, w)).collect();
    conf(s).cookie_flags.push(CookieFlags { name, flags: flags? });
    Ok(())
}
