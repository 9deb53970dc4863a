//! Replaces the address of a trusted proxy by that of the client. nginx: ngx_http_realip_module.

use std::net::SocketAddr;

use weir_conf::{Directive as Line, Error};

use crate::address::Address;
use crate::cidr::Cidr;
use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set, setting};
use crate::forwarded;
use crate::phases::Step;
use crate::request::Request;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};
use weir_values::Template;

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    /// `set_real_ip_from`: addresses of trusted proxies.
    from: Vec<Cidr>,
    header: AddressSource,
    recursive: bool,
}

impl Settings for Conf {}

/// The source of the client's address.
#[derive(Debug, Clone, Default)]
enum AddressSource {
    /// The first header `X-Real-IP`.
    #[default]
    XRealIp,
    /// All headers `X-Forwarded-For`, as one list.
    XForwardedFor,
    /// The first header of another name.
    Header(Vec<u8>),
    /// The PROXY protocol header of the connection.
    ProxyProtocol,
    /// A value with variables, read as the header of one line.
    Value(Template),
}

/// The beginning of a `real_ip_header` that is a value. No header has such a name.
const VALUE: &[u8] = b"value=";

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "set_real_ip_from",
        help: "Addresses of trusted proxies.",
        set: Set::Simple(from),
    },
    Directive {
        name: "real_ip_header",
        help: "The header with the client's address, `proxy_protocol`, or `value=` with variables.",
        set: Set::Simple(header),
    },
    setting!(
        "real_ip_recursive",
        CONF.recursive,
        Line::flag,
        "Whether the client is the last address that is not a trusted proxy, instead of the last address."
    ),
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module {
    name: "http_realip",
    directives: DIRECTIVES,
    init: |setup| {
        setup.variables.define("realip_remote_addr", |r, out| {
            r.conn.peer.write_host(out);
            true
        });
        setup.variables.define("realip_remote_port", |r, out| {
            if let Some(port) = r.conn.peer.port().filter(|port| *port > 0) {
                crate::answer::output::write_number(u64::from(port), out);
            }
            true
        });
    },
    ..Module::NEW
};

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    !CONF.of(conf).from.is_empty()
}

/// Replaces the client's address, once per request.
pub fn handler(r: &mut Request) -> Step {
    let conf = CONF.of(r.conf());
    if r.contexts.realip.is_none() {
        r.contexts.realip = find(r, conf).map(Box::new);
    }
    Step::Next
}

fn find(r: &mut Request, conf: &Conf) -> Option<Address> {
    let value = match &conf.header {
        AddressSource::Value(template) => template.eval(r).into_owned(),
        _ => Vec::new(),
    };
    let client =
        |lists: &[&[u8]]| forwarded::client(&r.conn.peer, lists, &conf.from, conf.recursive);
    match &conf.header {
        AddressSource::Value(_) => client(&[value.as_slice()]),
        AddressSource::XRealIp => client(&[r.header_named(b"x-real-ip")?]),
        AddressSource::Header(name) => client(&[r.header_named(name)?]),
        AddressSource::ProxyProtocol => {
            let header = r.conn.proxy.get()?;
            match client(&[header.source.as_slice()])? {
                Address::Inet(inet) => {
                    Some(Address::Inet(SocketAddr::new(inet.ip(), header.source_port)))
                }
                other => Some(other),
            }
        }
        AddressSource::XForwardedFor => {
            let name = b"x-forwarded-for";
            let all = r.headers().filter(|(n, _)| n.eq_ignore_ascii_case(name));
            let all: Vec<&[u8]> = all.map(|(_, value)| value).collect();
            client(&all)
        }
    }
}

fn from(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let first = s.first(d);
    let from = &mut CONF.change(&mut s.location).from;
    weir_values::access::read_trusted(from, d, first, &mut s.setup.warnings)
}

fn header(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let Some(word) = d.arg(0) else { return Ok(()) };
    let header = match word.bytes.as_slice() {
        b"X-Real-IP" => AddressSource::XRealIp,
        b"X-Forwarded-For" => AddressSource::XForwardedFor,
        b"proxy_protocol" => AddressSource::ProxyProtocol,
        name => match name.strip_prefix(VALUE) {
            Some(value) => AddressSource::Value(s.setup.template_of(d, word, value)?),
            None => AddressSource::Header(name.to_vec()),
        },
    };
    CONF.change(&mut s.location).header = header;
    Ok(())
}
