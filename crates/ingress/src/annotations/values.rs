//! Checks of annotation values. A value that passes can be a word of the configuration. It has only
//! allowed variables, patterns that compile, and no address of the server itself.

use std::net::{IpAddr, Ipv6Addr};

/// The longest value of an object that becomes a word. The configuration takes 4096 bytes, with
/// escapes.
pub const LONGEST: usize = 1024;

/// Variables that tenants may use. They depend on the request alone.
const VARIABLES: &[&str] = &[
    "args",
    "best_http_host",
    "binary_remote_addr",
    "content_length",
    "content_type",
    "document_root",
    "document_uri",
    "escaped_request_uri",
    "fastcgi_path_info",
    "fastcgi_script_name",
    "host",
    "http_host",
    "is_args",
    "pass_access_scheme",
    "query_string",
    "remote_addr",
    "remote_port",
    "remote_user",
    "req_id",
    "request_id",
    "request_method",
    "request_uri",
    "scheme",
    "server_name",
    "server_port",
    "server_protocol",
    "uri",
];

/// Checks the variables of a text.
pub fn template(text: &str) -> Result<(), String> {
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('$') {
        let braces = after.strip_prefix('{');
        let body = braces.unwrap_or(after);
        let length = body.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
        let (name, tail) = body.split_at(length);
        let capture = name.starts_with(|c: char| c.is_ascii_digit());
        let known = VARIABLES.contains(&name)
            || ["arg_", "cookie_", "http_"]
                .iter()
                .any(|p| name.len() > p.len() && name.starts_with(p));
        if !(known || capture && braces.is_none() && !name.starts_with('0')) {
            return Err(format!("the variable \"${name}\" is not allowed here"));
        }
        rest = match braces {
            Some(_) => tail.strip_prefix('}').ok_or("a variable's brace is not closed")?,
            None => tail,
        };
    }
    Ok(())
}

/// Whether a text is the path of a rule: it begins with a slash and has no control characters.
pub fn is_path(text: &str) -> bool {
    text.starts_with('/') && text.len() <= LONGEST && !text.contains(char::is_control)
}

/// Whether a text consists of letters, digits and `signs`.
pub fn of(text: &str, signs: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || signs.contains(c))
}

/// Whether a text has only characters that ingress-nginx allows in a regular expression.
pub fn is_pattern_text(text: &str) -> bool {
    of(text, "/-._~:^$[](){}*+?|&=\\")
}

/// Compiles a pattern as the server does.
pub fn pattern(text: &str) -> Result<(), String> {
    if text.contains("(?<") || text.contains("(?P") || text.contains("(?'") {
        return Err("groups with names are not allowed".to_owned());
    }
    if text.contains("(*") {
        return Err("verbs of PCRE are not allowed".to_owned());
    }
    pcre2::bytes::Regex::new(text)
        .map(drop)
        .map_err(|e| format!("the pattern does not compile: {e}"))
}

/// A size as nginx reads it.
pub fn size(text: &str) -> Option<u64> {
    weir_conf::values::offset(text.trim().as_bytes())
}

/// Addresses and networks, separated by commas.
pub fn networks(text: &str) -> Option<Vec<String>> {
    let list: Vec<&str> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    let good = !list.is_empty() && list.len() <= 10_000 && list.iter().all(|part| is_network(part));
    good.then(|| list.into_iter().map(str::to_owned).collect())
}

fn is_network(text: &str) -> bool {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let most = if address.is_ipv4() { 32 } else { 128 };
    bits.is_none_or(|bits| {
        bits.bytes().all(|b| b.is_ascii_digit()) && bits.parse().is_ok_and(|bits: u32| bits <= most)
    })
}

/// Whether a text is a host name for Kubernetes: labels of lower-case letters, digits and hyphens.
/// `wildcard` allows a leading `*.`.
pub fn is_host(text: &str, wildcard: bool) -> bool {
    let name = match text.strip_prefix("*.") {
        Some(name) if wildcard => name,
        Some(_) => return false,
        None => text,
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

/// Whether a text is one label of a name.
pub fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_part(text)
}

/// Whether a text is a label, of any length.
fn is_part(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Whether a text is the name of a Secret, ConfigMap, Ingress or another object that is no Service.
/// Its labels may be as long as the name.
pub fn is_object_name(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_part)
}

/// Whether a text is the name of a header.
pub fn is_header(text: &str) -> bool {
    (1..=256).contains(&text.len()) && of(text, "-_")
}

/// Whether an object may name a header that weir sets. Those that say where a message ends are
/// weir's own: with others, a part of one request would be the next one of a connection that several
/// routes use.
pub fn is_free_header(text: &str) -> bool {
    let own = ["Content-Length", "Transfer-Encoding"];
    is_header(text) && !own.iter().any(|name| name.eq_ignore_ascii_case(text))
}

/// Whether an upstream server may have this address. Loopback and link-local addresses are the
/// server's own machine.
pub fn is_far(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            !(v4.is_loopback()
                || v4.is_link_local()
                || v4.is_unspecified()
                || v4.is_multicast()
                || v4.is_broadcast())
        }
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => is_far(IpAddr::V4(v4)),
            None => {
                !(v6.is_loopback()
                    || v6.is_unspecified()
                    || v6.is_multicast()
                    || v6.is_unicast_link_local())
            }
        },
    }
}

/// The parts of an `http` or `https` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// `http` or `https`.
    pub scheme: String,
    /// The host without its port; an IPv6 address has its brackets. It may be [`RULE_HOST`] where
    /// [`url_at_host`] has read the URL.
    pub host: String,
    /// The port, if there is one.
    pub port: Option<u16>,
    /// The path and query; empty if there is none.
    pub rest: String,
}

impl Url {
    /// Whether the host is an address.
    pub fn has_address(&self) -> bool {
        self.host.starts_with('[') || self.host.parse::<IpAddr>().is_ok()
    }

    /// This URL with the host of a rule in place of [`RULE_HOST`]; `None` if it has another host.
    pub fn of_rule(&self, host: &str, loopback: bool) -> Option<Result<Url, String>> {
        if self.host != RULE_HOST {
            return None;
        }
        if host.is_empty() || host.starts_with("*.") {
            return Some(Err("$host is what a client sends, since the rule has no host or a \
                 wildcard: name the host in the rule or the URL, or the Service, as in \
                 http://NAME.NAMESPACE.svc.cluster.local"
                .to_owned()));
        }
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        Some(url(&format!("{}://{host}{port}{}", self.scheme, self.rest), loopback))
    }
}

/// The host of a URL that stands for the host of a rule.
pub const RULE_HOST: &str = "$host";

/// Parses a URL as [`url`] does; its host may also be [`RULE_HOST`].
pub fn url_at_host(text: &str, loopback: bool) -> Result<Url, String> {
    let parts = text.split_once("://");
    let at_host = parts.and_then(|(scheme, after)| Some((scheme, after.strip_prefix(RULE_HOST)?)));
    let is_whole = |after: &str| {
        after.is_empty() || after.starts_with(['/', '?', ':']) || after.starts_with("$request_uri")
    };
    match at_host.filter(|(_, after)| is_whole(after)) {
        // Any name does for the rest to be read.
        Some((scheme, after)) => {
            let read = url(&format!("{scheme}://host{after}"), loopback)?;
            Ok(Url { host: RULE_HOST.to_owned(), ..read })
        }
        None => url(text, loopback),
    }
}

/// Parses a URL that weir will send requests to. Its host has no variables and is not this machine,
/// unless `loopback` allows it.
pub fn url(text: &str, loopback: bool) -> Result<Url, String> {
    let (scheme, after) = text.split_once("://").ok_or("it is not a URL")?;
    let scheme = scheme.to_ascii_lowercase();
    if scheme != "http" && scheme != "https" {
        return Err("the URL is neither http nor https".to_owned());
    }
    let end = after.find(['/', '?', '$']).unwrap_or(after.len());
    let (authority, rest) = after.split_at(end);
    if rest.starts_with('$') && !rest.starts_with("$request_uri") {
        return Err("its host must not have variables, which a client could choose: \
             name the Service, as in http://NAME.NAMESPACE.svc.cluster.local"
            .to_owned());
    }
    let port = authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']'));
    let (host, port) = match port {
        Some((host, port)) => {
            (host, Some(port.parse::<u16>().map_err(|_| "its port is no number")?))
        }
        None => (authority, None),
    };
    let host = host.to_ascii_lowercase();
    let inside = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let v6 = inside.map(str::parse::<Ipv6Addr>);
    if !is_host(&host, false) && !matches!(v6, Some(Ok(_))) {
        return Err("its host is no name or address".to_owned());
    }
    let local = host == "localhost" || host.ends_with(".localhost");
    let address = v6.map_or_else(|| host.parse(), |v6| v6.map(IpAddr::V6));
    let far = match address {
        Ok(address) => is_far(address),
        // Resolvers accept other notations of IPv4 addresses, such as 2130706433 and 0x7f.1.
        Err(_) => {
            !local
                && !host
                    .rsplit('.')
                    .next()
                    .is_some_and(|l| l.starts_with(|c: char| c.is_ascii_digit()))
        }
    };
    if !far && !loopback {
        return Err("its host is the machine of the server".to_owned());
    }
    if !of(rest, "-._~/:,?&=$%+@!{}") {
        return Err("its path has other characters than a URL".to_owned());
    }
    template(rest)?;
    Ok(Url { scheme, host, port, rest: rest.to_owned() })
}
