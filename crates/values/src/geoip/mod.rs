//! Variables with the location of an address, from databases in MaxMind's format. nginx:
//! ngx_http_geoip_module, and the geoip2 module.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use weir_conf::{Directive as Line, Error, Word};

use crate::cidr::{self, Cidr};
use crate::forwarded;
use crate::reading::Reading;
use crate::subject::Subject;
use crate::template::Template;
use crate::variables::Get;

mod database;

use database::{Database, Field};

/// Proxies that are trusted to name the client behind them.
#[derive(Debug, Clone, Default)]
pub struct Proxies {
    list: Vec<Cidr>,
    /// Take the last address that is no trusted proxy.
    pub recursive: bool,
}

/// The trusted proxies of a subject, which are known once the whole configuration was read.
pub type Trust<S> = fn(&S) -> Option<&'static Proxies>;

/// The variables of a directive, with the paths of their values. The first path with a value
/// counts.
pub type VariablePaths = &'static [(&'static str, &'static [&'static str])];

/// `geoip_country`
pub const COUNTRY: VariablePaths = &[
    ("geoip_country_code", &["country.iso_code", "registered_country.iso_code"]),
    ("geoip_country_code3", &[]),
    ("geoip_country_name", &["country.names.en", "registered_country.names.en"]),
];

/// `geoip_city`
pub const CITY: VariablePaths = &[
    ("geoip_area_code", &[]),
    ("geoip_city", &["city.names.en"]),
    ("geoip_city_continent_code", &["continent.code"]),
    ("geoip_city_country_code", &["country.iso_code", "registered_country.iso_code"]),
    ("geoip_city_country_code3", &[]),
    ("geoip_city_country_name", &["country.names.en", "registered_country.names.en"]),
    ("geoip_dma_code", &["location.metro_code"]),
    ("geoip_latitude", &["location.latitude"]),
    ("geoip_longitude", &["location.longitude"]),
    ("geoip_postal_code", &["postal.code"]),
    ("geoip_region", &["subdivisions.0.iso_code"]),
    ("geoip_region_name", &["subdivisions.0.names.en"]),
];

/// `geoip_org`
pub const ORGANIZATION: VariablePaths =
    &[("geoip_org", &["organization", "isp", "autonomous_system_organization"])];

/// A variable of `geoip_country`, `geoip_city` or `geoip_org` in a configuration without the
/// directive: it has no value. As with nginx's module, a log format may refer to it all the same.
pub fn without_database<S: Subject>(name: &[u8]) -> Option<Get<S>> {
    let all = [COUNTRY, CITY, ORGANIZATION];
    let is_one = all.iter().copied().flatten().any(|(known, _)| known.as_bytes() == name);
    is_one.then(|| Arc::new(|_: &mut S, _: &mut Vec<u8>| false) as Get<S>)
}

impl Proxies {
    /// Adds a proxy, or a network of proxies.
    pub fn add(&mut self, d: &Line) -> Result<(), Error> {
        let Some(word) = d.arg(0) else { return Ok(()) };
        let (cidr, _) = Cidr::parse(&word.bytes).ok_or_else(|| d.invalid("network", word))?;
        self.list.push(cidr);
        Ok(())
    }
}

/// The address to look up: the peer's, or that of the client behind trusted proxies.
fn client<S: Subject>(subject: &S, trust: Trust<S>) -> Option<IpAddr> {
    let peer = subject.peer();
    let Some(proxies) = trust(subject).filter(|proxies| !proxies.list.is_empty()) else {
        return peer.ip();
    };
    let lines = subject.forwarded_for();
    let behind = forwarded::client(peer, &lines, &proxies.list, proxies.recursive);
    behind.as_ref().unwrap_or(peer).ip()
}

/// `geoip_country file [utf8]` and similar directives.
pub fn define_fixed<S: Subject>(
    s: &mut Reading<'_, S>,
    d: &Line,
    prefix: &Path,
    variables: VariablePaths,
    trust: Trust<S>,
) -> Result<(), Error> {
    let Some(file) = d.arg(0) else { return Ok(()) };
    if let Some(word) = d.arg(1).filter(|word| !word.is("utf8")) {
        return Err(d.invalid("parameter", word));
    }
    let database = Arc::new(open(d, prefix, file)?);
    for (name, places) in variables {
        let fields: Vec<Field> = places.iter().map(|place| Field::new(place.split('.'))).collect();
        let database = database.clone();
        s.variables.define_kept(name, move |r, out| {
            let Some(ip) = client(r, trust) else { return false };
            fields.iter().any(|field| database.find(ip, field, 4, out))
        });
    }
    Ok(())
}

fn open(d: &Line, prefix: &Path, word: &Word) -> Result<Database, Error> {
    let path = prefix.join(OsStr::from_bytes(&word.bytes));
    Database::open(&path).map_err(|why| {
        let error = d.error_at(word, format!("cannot read database \"{}\" {why}", path.display()));
        match word.bytes.ends_with(b".dat") {
            true => error.hint("weir reads databases of MaxMind's form, .mmdb, not the older .dat"),
            false => error,
        }
    })
}

/// `geoip2 file { $variable [default=value] [source=$variable] place...; }`
pub fn define_chosen<S: Subject>(
    s: &mut Reading<'_, S>,
    d: &Line,
    prefix: &Path,
    trust: Trust<S>,
) -> Result<(), Error> {
    let Some(file) = d.arg(0) else { return Ok(()) };
    let database = Arc::new(open(d, prefix, file)?);
    for line in d.block() {
        if line.name.is("auto_reload") {
            let text = "\"auto_reload\" ignored: a reload reads the database anew";
            s.warnings.push(line.warning(text));
            continue;
        }
        let name = s.new_variable(line, &line.name)?;
        let value = ChosenVariable::read(s, line, database.clone(), trust)?;
        s.variables.define_changeable(&name, true, move |r, out| value.write(r, out));
    }
    Ok(())
}

/// A variable of `geoip2`.
struct ChosenVariable<S> {
    database: Arc<Database>,
    trust: Trust<S>,
    default: Vec<u8>,
    /// The address to look up, if it is not the client's.
    source: Option<Template>,
    what: VariableSource,
}

enum VariableSource {
    /// A field of the address's record.
    Field(Field),
    /// `metadata build_epoch`
    Built,
    /// `metadata last_check`, `metadata last_change`
    Read,
}

impl<S: Subject> ChosenVariable<S> {
    fn read(
        s: &mut Reading<'_, S>,
        line: &Line,
        database: Arc<Database>,
        trust: Trust<S>,
    ) -> Result<ChosenVariable<S>, Error> {
        let (mut default, mut source) = (Vec::new(), None);
        let mut words = line.args.iter().peekable();
        while let Some(word) = words.peek() {
            if let Some(value) = word.bytes.strip_prefix(b"default=") {
                default = value.to_vec();
            } else if let Some(value) = word.bytes.strip_prefix(b"source=") {
                if !value.starts_with(b"$") {
                    return Err(line.invalid("source", word));
                }
                source = Some(s.template_of(line, word, value)?);
            } else {
                break;
            }
            words.next();
        }
        let place: Vec<String> = words.map(|word| word.lossy().into_owned()).collect();
        let place: Vec<&str> = place.iter().map(String::as_str).collect();
        let what = match place.as_slice() {
            ["metadata", "build_epoch"] => VariableSource::Built,
            ["metadata", "last_check" | "last_change"] => VariableSource::Read,
            ["metadata", ..] => {
                return Err(line.error("invalid metadata field in \"geoip2\" block"));
            }
            [] => return Err(line.error("invalid number of arguments in \"geoip2\" block")),
            place => VariableSource::Field(Field::new(place.iter().copied())),
        };
        Ok(ChosenVariable { database, trust, default, source, what })
    }

    fn write(&self, r: &mut S, out: &mut Vec<u8>) -> bool {
        let field = match &self.what {
            VariableSource::Built => return number(self.database.built(), out),
            VariableSource::Read => return number(self.database.read(), out),
            VariableSource::Field(field) => field,
        };
        let ip = match &self.source {
            None => client(r, self.trust),
            Some(source) => cidr::parse_ip(&source.eval(r)),
        };
        let found = ip.is_some_and(|ip| self.database.find(ip, field, 5, out));
        if !found {
            out.extend_from_slice(&self.default);
        }
        found || !self.default.is_empty()
    }
}

fn number(value: u64, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(value.to_string().as_bytes());
    true
}
