//! The directives of `stream` that weir implements. Tables in `weir-conf` have their contexts and
//! argument counts.

use std::sync::Arc;

use weir_conf::{Directive as Line, Error, values};
use weir_log::Level;
use weir_upstream::config::{Bind, Url};
use weir_values::status::StatusZone;
use weir_values::{Template, access, geo, geoip, listen, log, map, split_clients};

use crate::config::{self, StreamScope};
use crate::health;
use crate::script_directives;
use crate::session::Session;
use crate::settings::SessionContent;
use crate::tls;

/// A directive of the `stream` family.
#[derive(Debug, Clone, Copy)]
pub struct StreamDirective {
    /// Its name in a configuration.
    pub name: &'static str,
    /// One sentence for docs/directives.md.
    pub help: &'static str,
    /// How it is read.
    pub(crate) set: Set,
}

/// How a directive is read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Set {
    /// By this function.
    Line(fn(&mut StreamScope<'_, '_>, &Line) -> Result<(), Error>),
    /// With its block, or by the Lua module.
    Elsewhere,
}

/// The directive with this name, if weir implements it in `stream`.
pub fn directive(name: &str) -> Option<&'static StreamDirective> {
    let tls = tls::OWN.iter().chain(&tls::FOR_CLIENTS).chain(tls::TO_SERVERS);
    TABLE.iter().chain(script_directives::TABLE).chain(tls).find(|d| d.name == name)
}

pub(crate) const fn line(
    name: &'static str,
    help: &'static str,
    set: fn(&mut StreamScope<'_, '_>, &Line) -> Result<(), Error>,
) -> StreamDirective {
    StreamDirective { name, help, set: Set::Line(set) }
}

pub(crate) const fn elsewhere(name: &'static str, help: &'static str) -> StreamDirective {
    StreamDirective { name, help, set: Set::Elsewhere }
}

/// A directive that may appear once in a block and sets one field.
macro_rules! once {
    ($name:literal, $($field:ident).+, $read:expr, $help:literal) => {
        line($name, $help, |s, d| {
            s.once(d)?;
            let read: fn(&Line) -> Result<_, Error> = $read;
            s.conf.$($field).+ = read(d)?;
            Ok(())
        })
    };
}

/// The number of responses without a limit. nginx: NGX_MAX_INT32_VALUE.
const NO_NUMBER: u64 = 0x7fff_ffff;

const IGNORED: &str = "Accepted: weir sizes its tables itself.";
const OLD_BUFFER: &str = "An old name of `proxy_buffer_size`, with a warning.";

static TABLE: &[StreamDirective] = &[
    elsewhere("upstream", "A group of servers that sessions are passed to."),
    elsewhere(
        "server",
        "A server for the sessions of some addresses; in `upstream`, a server of the group.",
    ),
    elsewhere("hash", "Chooses the server by the hash of a value; `consistent`: by ketama's ring."),
    elsewhere("least_conn", "Chooses the server with the fewest connections for its weight."),
    elsewhere(
        "least_time",
        "Chooses the server with the lowest response time and the fewest connections.",
    ),
    elsewhere("random", "Chooses a random server, or the less loaded one of two."),
    elsewhere(
        "servers_file",
        "Reads the servers of the group from a file. Running workers follow its changes.",
    ),
    elsewhere("zone", "Shared memory where all workers find the servers' state."),
    line("listen", "An address that sessions come to.", |s, d| {
        let lines = listen::parse(d, false, &mut s.setup.warnings)?;
        s.listens.extend(lines);
        Ok(())
    }),
    line(
        "server_name",
        "Names that choose the server among those of an address.",
        config::server_name,
    ),
    line("error_log", "Where errors of sessions are logged.", |s, d| {
        let first = s.first(d);
        s.conf.error_log = s.setup.inputs.error_log(d, first, &s.conf.error_log)?;
        Ok(())
    }),
    once!(
        "resolver",
        resolver,
        |d| Ok(Some(Arc::new(weir_resolver::ResolverConf::read(d)?))),
        "Name servers for the names of upstream servers."
    ),
    once!(
        "resolver_timeout",
        resolver_timeout,
        Line::duration,
        "How long a name server is waited for."
    ),
    once!(
        "proxy_protocol_timeout",
        proxy_protocol_timeout,
        Line::duration,
        "How long a balancer's header may take."
    ),
    once!(
        "blocked_threshold",
        threshold,
        Line::duration,
        "The error log names a session that blocks its loop for longer."
    ),
    once!("tcp_nodelay", tcp_nodelay, Line::flag, "Small pieces leave at once."),
    once!(
        "preread_buffer_size",
        preread_buffer,
        |d| bytes(d).map(|n| n.max(1)),
        "How much is looked at before a session is passed on."
    ),
    once!(
        "preread_timeout",
        preread_timeout,
        Line::duration,
        "How long a client may take to send that much."
    ),
    line("variables_hash_max_size", IGNORED, |s, d| s.once(d)),
    line("variables_hash_bucket_size", IGNORED, |s, d| s.once(d)),
    line("server_names_hash_max_size", IGNORED, |s, d| s.once(d)),
    line("server_names_hash_bucket_size", IGNORED, |s, d| s.once(d)),
    line("map_hash_max_size", IGNORED, |s, d| s.once(d)),
    line("map_hash_bucket_size", IGNORED, |s, d| s.once(d)),
    line("map", "A variable whose value depends on another value.", |s, d| {
        map::read(&mut s.setup.reading(), d)
    }),
    line("geo", "A variable whose value depends on an address.", |s, d| {
        geo::read(&mut s.setup.reading(), d, false)
    }),
    line(
        "split_clients",
        "A variable with a value that depends on the hash of another.",
        |s, d| split_clients::read(&mut s.setup.reading(), d),
    ),
    line(
        "geoip_country",
        "Variables with the country of an address, from a MaxMind database (`.mmdb`).",
        |s, d| country(s, d, geoip::COUNTRY),
    ),
    line("geoip_city", "Variables with the city, region and country of an address.", |s, d| {
        country(s, d, geoip::CITY)
    }),
    line("geoip_org", "`$geoip_org`: the network's organization.", |s, d| {
        country(s, d, geoip::ORGANIZATION)
    }),
    line(
        "geoip2",
        "Variables, each with its path in the database's record of an address.",
        |s, d| {
            let prefix = s.setup.inputs.prefix;
            geoip::define_chosen(&mut s.setup.reading(), d, prefix, |_| None)
        },
    ),
    line("set", "Sets a variable.", set),
    line("allow", "Allows clients with this address.", allow),
    line("deny", "Denies clients with this address.", allow),
    line("limit_conn_zone", "Shared memory for the number of sessions of each key.", |s, d| {
        let zones = s.setup.inputs.zones;
        s.conf.limits.zone(&mut s.setup.reading(), zones, d)
    }),
    line("limit_conn", "How many sessions of a key there may be at once.", |s, d| {
        s.conf.limits.limit::<Session>(d, s.setup.inputs.zones)
    }),
    once!(
        "limit_conn_log_level",
        refusal.log_level,
        |d| d.choice(&[
            ("info", Level::Info),
            ("notice", Level::Notice),
            ("warn", Level::Warn),
            ("error", Level::Error),
        ]),
        "The level at which refused sessions are logged."
    ),
    once!(
        "limit_conn_dry_run",
        refusal.dry_run,
        Line::flag,
        "Counts and logs, but limits nothing."
    ),
    line("log_format", "A named format of access log lines.", |s, d| {
        s.logging(|files, conf| log::log_format(files, conf, d))
    }),
    line(
        "access_log",
        "Where sessions are logged, in which form, under which condition.",
        |s, d| {
            let first = s.first(d);
            s.logging(|files, conf| log::access_log(files, conf, d, first, None))
        },
    ),
    line("open_log_file_cache", "Keeps logs open whose names have variables.", |s, d| {
        s.once(d)?;
        log::open_log_file_cache(&mut s.conf.log, d)
    }),
    line("set_real_ip_from", "Addresses of trusted proxies.", |s, d| {
        let first = s.first(d);
        access::read_trusted(&mut s.conf.believed, d, first, &mut s.setup.warnings)
    }),
    once!(
        "ssl_preread",
        ssl_preread,
        Line::flag,
        "Looks into a client's first TLS message without taking part: `$ssl_preread_server_name` and kin."
    ),
    line("return", "A text is sent, and the session ends.", |s, d| {
        s.once(d)?;
        let Some(word) = d.arg(0) else { return Ok(()) };
        s.conf.content = SessionContent::Return(s.setup.reading().template(d, word)?);
        Ok(())
    }),
    line("pass", "Hands the connection to another listener of this server.", config::pass),
    line("proxy_pass", "The server or group that sessions are passed to.", proxy_pass),
    once!(
        "proxy_connect_timeout",
        proxy.connect_timeout,
        Line::duration,
        "How long a connection to a server may take."
    ),
    once!("proxy_timeout", proxy.timeout, Line::duration, "How long both sides may be silent."),
    line("proxy_buffer_size", "How much is read at once.", buffer_size),
    line("proxy_downstream_buffer", OLD_BUFFER, buffer_size),
    line("proxy_upstream_buffer", OLD_BUFFER, buffer_size),
    line("proxy_upload_rate", "Bytes a second from the client.", |s, d| {
        s.once(d)?;
        s.conf.proxy.upload_rate = rate(s, d)?;
        Ok(())
    }),
    line("proxy_download_rate", "Bytes a second to the client.", |s, d| {
        s.once(d)?;
        s.conf.proxy.download_rate = rate(s, d)?;
        Ok(())
    }),
    once!(
        "proxy_next_upstream",
        proxy.next,
        Line::flag,
        "Another server is tried when one does not answer."
    ),
    once!(
        "proxy_next_upstream_tries",
        proxy.tries,
        |d| d.number().map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
        "How many servers are tried."
    ),
    once!(
        "proxy_next_upstream_timeout",
        proxy.next_timeout,
        Line::duration,
        "For how long servers are tried."
    ),
    once!(
        "proxy_protocol",
        proxy.proxy_protocol,
        |d| d.choice(&[("on", Some(1)), ("off", None), ("v2", Some(2))]),
        "Whether the PROXY protocol names the client to servers."
    ),
    once!(
        "proxy_half_close",
        proxy.half_close,
        Line::flag,
        "One side may be done before the other."
    ),
    once!(
        "proxy_requests",
        proxy.requests,
        Line::number,
        "How many of a client's datagrams are a session."
    ),
    once!(
        "proxy_responses",
        proxy.responses,
        |d| d.number().map(|n| (n < NO_NUMBER).then_some(n)),
        "How many datagrams answer each of them; a session that has them all is complete."
    ),
    line(
        "health_check",
        "Checks the servers regularly; a server that fails gets no sessions.",
        |s, d| {
            s.checks.push(health::HealthCheckDirective::read(d)?);
            Ok(())
        },
    ),
    once!(
        "health_check_timeout",
        health_timeout,
        Line::duration,
        "How long an answer to a health check may take."
    ),
    line("status_zone", "The name under which `weir_status` shows a server's sessions.", |s, d| {
        s.once(d)?;
        s.conf.status_zone = StatusZone::read(s.setup.inputs.zones, d)?;
        Ok(())
    }),
    line("match", "What a health check sends, and what must come back.", health::rules),
    line("proxy_bind", "The local address of connections to servers.", |s, d| {
        s.once(d)?;
        s.conf.proxy.bind = Bind::read(&mut s.setup.reading(), d)?;
        Ok(())
    }),
    once!("proxy_socket_keepalive", proxy.keepalive, Line::flag, "Keep-alive probes to servers."),
    once!(
        "proxy_socket_rcvbuf",
        proxy.rcvbuf,
        |d| bytes(d).map(Some),
        "SO_RCVBUF of connections to servers."
    ),
    once!(
        "proxy_socket_sndbuf",
        proxy.sndbuf,
        |d| bytes(d).map(Some),
        "SO_SNDBUF of connections to servers."
    ),
];

/// Reads a GeoIP database. `stream` has no header that names clients: only the connection's address
/// counts.
fn country(
    s: &mut StreamScope<'_, '_>,
    d: &Line,
    variables: geoip::VariablePaths,
) -> Result<(), Error> {
    let prefix = s.setup.inputs.prefix;
    geoip::define_fixed(&mut s.setup.reading(), d, prefix, variables, |_| None)
}

/// `proxy_buffer_size`, also by its old names.
fn buffer_size(s: &mut StreamScope<'_, '_>, d: &Line) -> Result<(), Error> {
    const NAME: &str = "proxy_buffer_size";
    if !s.first_of(NAME) {
        return Err(d.problem("is duplicate"));
    }
    if !d.name.is(NAME) {
        let old = d.name.lossy();
        let text =
            format!("the \"{old}\" directive is deprecated, use the \"{NAME}\" directive instead");
        s.setup.warnings.push(d.warning(text));
    }
    let size = bytes(d)?.max(1);
    (s.conf.proxy.buffer, s.conf.proxy.most) = (size, size);
    Ok(())
}

fn bytes(d: &Line) -> Result<usize, Error> {
    d.size().map(|n| usize::try_from(n).unwrap_or(usize::MAX))
}

fn allow(s: &mut StreamScope<'_, '_>, d: &Line) -> Result<(), Error> {
    // Both directives make one list.
    let first = s.first_of("allow, deny");
    s.conf.access.read(d, first, &mut s.setup.warnings)
}

fn rate(s: &mut StreamScope<'_, '_>, d: &Line) -> Result<Option<Template>, Error> {
    let Some(word) = d.arg(0) else { return Ok(None) };
    let rate = s.setup.reading().template(d, word)?;
    match rate.constant().map(values::size) {
        Some(None) => Err(d.problem("invalid value")),
        _ => Ok(Some(rate)),
    }
}

/// `set $variable value`
fn set(s: &mut StreamScope<'_, '_>, d: &Line) -> Result<(), Error> {
    let (Some(name), Some(value)) = (d.arg(0), d.arg(1)) else { return Ok(()) };
    let mut reading = s.setup.reading();
    let new = reading.new_variable(d, name)?;
    let id = reading.variables.stored_or(new.as_bytes(), |_, _| true);
    let value = reading.template(d, value)?;
    s.conf.sets.push((id, value));
    Ok(())
}

/// `proxy_pass ADDRESS`
fn proxy_pass(s: &mut StreamScope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let Some(word) = d.arg(0) else { return Ok(()) };
    let value = s.setup.reading().template(d, word)?;
    s.conf.content = match value.constant() {
        None => SessionContent::Computed(value),
        Some(text) => {
            let url = Url::parse(text, false)
                .map_err(|e| d.error_at(word, format!("{e} in upstream \"{}\"", word.lossy())))?;
            SessionContent::Group(s.setup.upstreams.refer(d, word, url, 0)?)
        }
    };
    Ok(())
}
