//! Variables whose value is looked up by another value. nginx: ngx_http_map_module.

use weir_conf::{Directive as Line, Error, Spot};

use crate::reading::Reading;
use crate::subject::Subject;
use crate::template::Template;

use crate::names::{ServerName, WildcardNames};
use crate::regex::{Matched, Regex};

/// One `map`.
#[derive(Debug)]
struct Map {
    source: Template,
    /// Names may have wildcards, and a trailing dot of the source is ignored.
    hostnames: bool,
    /// Names in lower case, since they are compared without case.
    names: WildcardNames<Template>,
    regexes: Vec<(Regex, Template)>,
    default: Option<Template>,
}

impl Map {
    /// Appends the value for the request.
    fn read<S: Subject>(&self, r: &mut S, out: &mut Vec<u8>) {
        let mut source = self.source.eval(r).into_owned();
        if self.hostnames && source.ends_with(b".") {
            source.pop();
        }
        if let Some(template) = self.find(r, &source) {
            template.eval_into(r, out);
        }
    }

    fn find<S: Subject>(&self, r: &mut S, source: &[u8]) -> Option<&Template> {
        if let Some(template) = self.names.find(&source.to_ascii_lowercase()) {
            return Some(template);
        }
        // An empty source is compared with names only, as in nginx. A regular expression that
        // matches the empty string, such as `^[0-9]*$`, would match requests without the header.
        let regexes = if source.is_empty() { &[] } else { self.regexes.as_slice() };
        for (regex, template) in regexes {
            match regex.decide(r, source) {
                Matched::Yes => return Some(template),
                Matched::No => {}
                // The default could let a client in, so it does not apply.
                Matched::Failed => return None,
            }
        }
        self.default.as_ref()
    }
}

/// `map source $variable { ... }`
pub fn read<S: Subject>(s: &mut Reading<'_, S>, d: &Line) -> Result<(), Error> {
    let (Some(source), Some(variable)) = (d.arg(0), d.arg(1)) else { return Ok(()) };
    let source = s.template(d, source)?;
    let name = s.new_variable(d, variable)?;
    let mut map = Map {
        source,
        hostnames: false,
        names: WildcardNames::default(),
        regexes: Vec::new(),
        default: None,
    };
    let mut volatile = false;
    // `hostnames` may stand before or after the entries.
    for line in d.block() {
        match (line.name.bytes.as_slice(), line.args.as_slice()) {
            (b"hostnames", []) => map.hostnames = true,
            (b"volatile", []) => volatile = true,
            (_, [value]) => {
                let at = Spot::new(line, value);
                let value = s.template(line, value)?;
                s.variables.own_texts_of(name.as_bytes(), value.texts(), at);
                entry(s, &mut map, line, value)?;
            }
            _ => return Err(line.error("invalid number of the map parameters")),
        }
    }
    s.variables.define_changeable(&name, !volatile, move |r, out| {
        map.read(r, out);
        true
    });
    Ok(())
}

fn entry<S: Subject>(
    s: &mut Reading<'_, S>,
    map: &mut Map,
    line: &Line,
    value: Template,
) -> Result<(), Error> {
    let key = line.name.bytes.as_slice();
    if key == b"default" {
        if map.default.replace(value).is_some() {
            return Err(line.error("duplicate default map parameter"));
        }
        return Ok(());
    }
    if let Some(pattern) = key.strip_prefix(b"~") {
        let (pattern, caseless) = match pattern.strip_prefix(b"*") {
            Some(pattern) => (pattern, true),
            None => (pattern, false),
        };
        map.regexes.push((s.regex(line, &line.name, pattern, caseless)?, value));
        return Ok(());
    }
    let key = key.strip_prefix(b"\\").unwrap_or(key);
    let name = name(map, key).ok_or_else(|| {
        let key = String::from_utf8_lossy(key);
        line.error_at(&line.name, format!("invalid hostname or wildcard \"{key}\""))
    })?;
    if !map.names.add(&name, value) {
        // nginx compares keys in lower case.
        let key = key.to_ascii_lowercase();
        let text = format!("conflicting parameter \"{}\"", String::from_utf8_lossy(&key));
        return Err(line.error_at(&line.name, text));
    }
    Ok(())
}

fn name(map: &Map, key: &[u8]) -> Option<ServerName> {
    if !map.hostnames {
        return Some(ServerName::Exact(key.to_ascii_lowercase()));
    }
    ServerName::parse(key).filter(|name| !matches!(name, ServerName::Bad(_)))
}
