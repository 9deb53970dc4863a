//! The location of one path.

use std::borrow::Cow;

use weir_conf::{Directive, DirectiveBody};

use super::access::{
    AuthParts, auth_request, basic, cached, certificate_headers, cors, custom_headers, limits,
    of_location, resolved, service_headers, target,
};
use super::frame;
use super::hosts::{Host, Route};
use super::keys::redirect_code;
use super::lines::{counted, digest, line, subrequest_name, when};
use super::location_variables::{names, set_variables};
use super::made::Made;
use super::owners::key_owner;
use super::pass::{errors, pass};
use super::snippet::Place;
use super::sources::Source;
use super::work::Work;
use crate::annotations::Protocol;
use crate::annotations::values::{self, Url};
use crate::report::Severity;

/// Directives that the modules of all protocols have, with their own prefix.
const ALIKE: &[&str] = &[
    "connect_timeout",
    "next_upstream",
    "next_upstream_timeout",
    "next_upstream_tries",
    "read_timeout",
    "send_timeout",
];

/// Words of `proxy_next_upstream` that `fastcgi_next_upstream` does not take.
const NOT_OF_FASTCGI: [&str; 2] = ["http_502", "http_504"];

/// The path of ACME's HTTP challenges.
const CHALLENGE: &str = "/.well-known/acme-challenge";

/// The most bytes of the words of all locations of an Ingress, and of the snippets in all of its
/// servers. Each location has the lists of the annotations for itself, so their size would grow with
/// the square of the Ingress's.
pub(super) const MOST_OF_INGRESS: usize = 8 << 20;
/// What each location may have in any case.
const LEAST_OF_LOCATION: usize = 4 << 10;

/// The location of a route. It answers 503 if all locations of its Ingress together would be too
/// large.
pub(super) fn location(
    work: &mut Work<'_>,
    host: &Host,
    route: &Route,
    path: &str,
    tls: bool,
) -> Made {
    let source = &route.source;
    let most = (MOST_OF_INGRESS / source.locations.max(1)).max(LEAST_OF_LOCATION);
    // A network is at least eight bytes. Lists that are too long are not even made.
    let networks = source.options.allow.len() + source.options.deny.len();
    if networks * 8 <= most {
        let made = whole_location(work, host, route, path, tls);
        if size(&made.inside) + size(&made.beside) <= most {
            return made;
        }
    }
    let why = format!(
        "lists, headers and snippets stand in each of {} locations, which may have {most} bytes each",
        source.locations
    );
    closed(work, source, ("TooLarge", "annotations"), &why)
}

/// The bytes of the words of directives and their blocks.
fn size(list: &[Directive]) -> usize {
    let one = |d: &Directive| {
        let words: usize = std::iter::once(&d.name).chain(&d.args).map(|w| w.bytes.len()).sum();
        let script = match &d.body {
            DirectiveBody::Raw(text) => text.len(),
            DirectiveBody::None | DirectiveBody::Block(_) => 0,
        };
        words + script + size(d.block())
    };
    list.iter().map(one).sum()
}

fn whole_location(work: &mut Work<'_>, host: &Host, route: &Route, path: &str, tls: bool) -> Made {
    let source = &route.source;
    let o = &source.options;
    let mut made = Made::default();
    made.inside.push(counted(&source.id));
    made.inside.extend(set_variables(route, path, |name| work.base.used_variables.contains(&name)));
    work.trace(route, &mut made.inside);
    let key = digest(format!("{}\n{}\n{path}", source.id, host.name).as_bytes());
    // ACME challenges come over plain HTTP.
    let challenge = path.starts_with(CHALLENGE);
    let exempt = work.settings.list("no-tls-redirect-locations").any(|at| path.starts_with(at));
    let plain = challenge || exempt;
    if !plain && (o.force_ssl_redirect || o.ssl_redirect && tls && host.has_tls) {
        made.inside.push(https(work, o.keep_slash));
    }
    if let Some(name) = o.closed {
        let why = "it restricts access and cannot be obeyed";
        made.inside.push(work.refuse(&source.id, "AccessClosed", name, why));
        return made;
    }
    made.inside.extend(o.deny.iter().map(|network| line("deny", [network.as_str()])));
    made.inside.extend(o.allow.iter().map(|network| line("allow", [network.as_str()])));
    if !o.allow.is_empty() {
        made.inside.push(line("deny", ["all"]));
    }
    if let Some(name) = &o.custom_headers {
        match custom_headers(work, source, name) {
            Ok(list) => made.inside.extend(list),
            Err(why) => return closed(work, source, ("NoConfigMap", "custom-headers"), &why),
        }
    }
    cors(route, &mut made.inside);
    let mut extra = Vec::new();
    let free = work.settings.defaults.get("no-auth-locations").map_or(CHALLENGE, String::as_str);
    let free = free.split(',').map(str::trim).any(|at| !at.is_empty() && path.starts_with(at));
    if free {
        // This path is exempt from authentication.
    } else if let Err(why) = basic(work, route, &mut made.inside, &mut extra) {
        return closed(work, source, ("AccessClosed", "auth-secret"), &why);
    }
    if let Some(auth) = o.auth_request.as_ref().filter(|_| !free) {
        let about = auth.name();
        let auth = match auth.of_rule(&host.name, work.settings.loopback) {
            Ok(auth) => auth,
            Err(why) => return closed(work, source, ("AccessClosed", about), &why),
        };
        if let Cow::Owned(auth) = &auth
            && asks_itself(host, route, path, &auth.url)
        {
            let remedy = match auth.global {
                true => "enable-global-auth: \"false\", or name its path in no-auth-locations",
                false => "without auth-url",
            };
            let why = format!(
                "its path is one of those that it guards, so it asks itself where the name of \
                 the host leads here: give it an Ingress of its own {remedy}"
            );
            work.say(&source.id, Severity::Warning, "AsksItself", about, &why);
        }
        let auth = auth.as_ref();
        let certificate = certificate_headers(host).into_iter();
        let set = |(name, value)| line("proxy_set_header", [name, value]);
        let mut sent: Vec<Directive> = certificate.map(set).collect();
        match service_headers(work, source, auth) {
            Ok(list) => sent.extend(list),
            Err(why) => {
                return closed(work, source, ("AccessClosed", "auth-proxy-set-headers"), &why);
            }
        }
        sent.extend(match &auth.snippet {
            Some(text) if auth.global => work.fragment("global-auth-snippet", text),
            text => work.snippet(source, "auth-snippet", text.as_ref(), Place::Location),
        });
        sent.extend(cached(work, source, auth, &key));
        of_location(o, auth, &mut sent);
        let (set, target) = target(work, source, auth, &key);
        sent.extend(set);
        let of_tls = if tls { frame::of_tls(work) } else { Vec::new() };
        let mut of_cors = Vec::new();
        cors(route, &mut of_cors);
        let (target, key) = (target.as_str(), key.as_str());
        let parts = AuthParts { auth, target, key, of_tls, cors: of_cors, sent };
        auth_request(parts, &mut made, &mut extra);
    }
    made.inside.extend(o.satisfy.map(|all| line("satisfy", [all])));
    limits(work, source, &mut made.inside);
    let late = |name: &str, words: &[String]| {
        name == "proxy_redirect" && words.first().is_some_and(|word| word == "default")
    };
    let simple = o.simple.iter().filter(|(name, words)| !late(name, words));
    for (name, words) in simple {
        made.inside.push(line(name, words.iter().map(String::as_str)));
        let other = match o.protocol {
            Protocol::Grpc | Protocol::Grpcs => "grpc",
            Protocol::Fcgi => "fastcgi",
            _ => continue,
        };
        // Settings for HTTP upstreams apply to those of other protocols, too, where they have them.
        let part = name.strip_prefix("proxy_").filter(|part| ALIKE.contains(part));
        let has = |word: &&str| other != "fastcgi" || !NOT_OF_FASTCGI.contains(word);
        let words: Vec<&str> = words.iter().map(String::as_str).filter(has).collect();
        let part = part.filter(|_| !words.is_empty());
        made.inside.extend(part.map(|part| line(&format!("{other}_{part}"), words)));
    }
    for (on, name, word) in [
        (o.relative_redirects, "absolute_redirect", "off"),
        (o.redirect_port, "port_in_redirect", "on"),
    ] {
        made.inside.extend(on.then(|| line(name, [word])));
    }
    if let Some(mirror) = &o.mirror {
        let at = subrequest_name("mirror", &key);
        made.inside.push(line("mirror", [at.as_str()]));
        made.inside.push(line("mirror_request_body", [if mirror.body { "on" } else { "off" }]));
        let about = ("mirror-target", "$mirror_host");
        let (mut copy, target) = resolved(work, source, about, &mirror.url);
        copy.extend([
            line("internal", []),
            line("proxy_set_header", ["Host", &mirror.host]),
            line("proxy_pass", [target.as_str()]),
        ]);
        made.beside.push(line("location", ["=", &at]).with_block(copy));
    }
    let text = o.location_snippet.as_ref();
    let snippet = work.snippet(source, "configuration-snippet", text, Place::Location);
    if let Some(text) = text.filter(|_| !snippet.is_empty()) {
        let further = |name: &str| names(text, name) && !work.base.used_variables.contains(&name);
        made.inside.splice(0..0, set_variables(route, path, further));
    }
    let mut of_all = work.base.location.clone();
    work.owners.mark(&key_owner("location-snippet"), &mut of_all);
    let snippet = of_all.into_iter().chain(snippet).collect();
    if let Some((code, to)) = &o.redirect {
        made.inside.extend(snippet);
        made.inside.push(line("return", [code.to_string().as_str(), to]));
        return made;
    }
    errors(work, route, &key, &mut made);
    pass(work, host, (route, &key), &mut made, extra, snippet);
    made
}

/// Whether the path of a service at the host of a rule is served by the route that asks it.
fn asks_itself(host: &Host, route: &Route, path: &str, url: &Url) -> bool {
    let at = url.rest.split(['?', '$']).next().unwrap_or_default();
    url.port.is_none()
        && at.starts_with(path)
        && host.route_of(at).is_some_and(|found| std::ptr::eq(found, route))
}

/// The redirect to HTTPS.
fn https(work: &Work<'_>, keep_slash: bool) -> Directive {
    let port = match work.settings.https_port {
        443 => String::new(),
        port => format!(":{port}"),
    };
    let uri = if keep_slash { "$request_uri" } else { "$uri_without_slash" };
    let forwarded = work.settings.flag("use-forwarded-headers");
    let host = if forwarded { "$redirect_host" } else { "$host" };
    let to = format!("https://{host}{port}{uri}");
    when(
        "$pass_access_scheme",
        "=",
        "http",
        vec![line("return", [redirect_code(work.settings), &to])],
    )
}

/// A location that answers 503, since an annotation cannot be obeyed.
fn closed(
    work: &mut Work<'_>,
    source: &Source,
    (reason, annotation): (&'static str, &'static str),
    why: &str,
) -> Made {
    let answer = work.refuse(&source.id, reason, annotation, why);
    Made { inside: vec![counted(&source.id), answer], ..Made::default() }
}

/// The headers of a ConfigMap.
#[derive(Default)]
pub(super) struct HeaderMap {
    /// Names and values.
    pub(super) good: Vec<(String, String)>,
    /// The names of those that cannot be sent.
    pub(super) wrong: Vec<String>,
}

impl Work<'_> {
    /// The headers of a ConfigMap in the Ingress's own namespace, and the names of those that cannot
    /// be sent.
    pub(super) fn map_of_headers(
        &mut self,
        source: &Source,
        name: &str,
    ) -> Result<HeaderMap, String> {
        let data = self.own_config_map(&source.id, name)?;
        let good = |(name, value): &(&String, &String)| {
            values::is_free_header(name)
                && value.len() <= values::LONGEST
                && !value.contains(char::is_control)
                && values::template(value).is_ok()
        };
        let pair = |(name, value): (&String, &String)| (name.clone(), value.clone());
        let (good, wrong): (Vec<_>, Vec<_>) = data.iter().partition(good);
        let wrong = wrong.into_iter().map(|(name, _)| name.clone()).collect();
        Ok(HeaderMap { good: good.into_iter().map(pair).collect(), wrong })
    }
}
