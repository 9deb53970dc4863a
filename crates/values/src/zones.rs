//! Zones whose keys are values of requests, as `limit_req_zone` and `limit_conn_zone` have them.

use weir_conf::{Directive, Error, Word, values};
use weir_log::Level;
use weir_zone::{Declarations, Locked, Use, ZoneRef};

use crate::reading::Reading;
use crate::subject::Subject;
use crate::template::Template;

/// nginx's slab allocator needs at least eight pages.
const SMALLEST: u64 = 8 * 4096;

/// A zone, with the template of its keys.
#[derive(Debug, Clone)]
pub struct Keyed {
    zone: ZoneRef,
    key: Template,
}

impl Keyed {
    /// Reads `KEY zone=NAME:SIZE ...`. Other words go to `other`, which returns whether it knows
    /// them.
    pub fn read<S: Subject>(
        s: &mut Reading<'_, S>,
        zones: &Declarations,
        d: &Directive,
        purpose: Use,
        mut other: impl FnMut(&Word) -> Result<bool, Error>,
    ) -> Result<Keyed, Error> {
        let mut named = None;
        for word in d.args.iter().skip(1) {
            if let Some(value) = word.bytes.strip_prefix(b"zone=") {
                named = Some(name_and_size(d, word, value)?);
            } else if !other(word)? {
                return Err(d.invalid("parameter", word));
            }
        }
        let directive = d.name.lossy();
        let (Some((name, size)), Some(key)) = (named, d.arg(0)) else {
            return Err(d.error(format!("\"{directive}\" must have \"zone\" parameter")));
        };
        let bound = zones
            .find_in(purpose.block, &name, purpose.tag)
            .ok()
            .map(|known| known.purpose().key.clone());
        let purpose = Use { key: key.lossy().into_owned(), ..purpose };
        let zone = zones.declare(&name, size, purpose).map_err(|text| d.error(text))?;
        if let Some(bound) = bound {
            let text = format!("{directive} \"{name}\" is already bound to key \"{bound}\"");
            return Err(d.error(text));
        }
        let key = Template::new(s.variables, &key.bytes).map_err(|text| d.error_at(key, text))?;
        Ok(Keyed { zone, key })
    }

    /// The zone's name.
    pub fn name(&self) -> &str {
        self.zone.name()
    }

    /// The key of a request. `None` if it is empty or too long: then the request is not counted.
    pub fn key<S: Subject>(&self, r: &mut S, longest: usize) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        self.key.eval_into(r, &mut value);
        if value.len() > longest {
            let (key, text) = (&self.zone.purpose().key, String::from_utf8_lossy(&value));
            r.log(
                Level::Error,
                format_args!(
                    "the value of the \"{key}\" key is more than {longest} bytes: \"{text}\""
                ),
            );
            return None;
        }
        (!value.is_empty()).then_some(value)
    }

    /// Locks the zone's table.
    pub fn lock(&self) -> Option<Locked<'_>> {
        self.zone.get().map(weir_zone::Zone::lock)
    }

    /// The time of this turn, in the zone's milliseconds.
    pub fn now<S: Subject>(&self, r: &S) -> u64 {
        self.zone.get().map_or(0, |zone| zone.msec(r.handle().now()))
    }
}

/// Parses `NAME:SIZE` of a zone with keys.
pub fn name_and_size(d: &Directive, word: &Word, value: &[u8]) -> Result<(String, u64), Error> {
    let invalid = || d.invalid("zone size", word);
    let colon = value.iter().position(|b| *b == b':').ok_or_else(invalid)?;
    let (name, size) = value.split_at(colon);
    let size = size.get(1..).and_then(values::size).ok_or_else(invalid)?;
    if size < SMALLEST {
        return Err(d.error_at(word, format!("zone \"{}\" is too small", word.lossy())));
    }
    if name.is_empty() {
        return Err(d.error(format!("\"{}\" must have \"zone\" parameter", d.name.lossy())));
    }
    Ok((String::from_utf8_lossy(name).into_owned(), size))
}
