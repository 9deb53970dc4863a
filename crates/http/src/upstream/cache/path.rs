//! The directive `..._cache_path`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use weir_cache::{Cache, CacheDirectory, CacheSettings, Pace};
use weir_conf::{Directive, Error, Word, values};
use weir_zone::Use;

use crate::config::Inputs;
use crate::config::scope::Scope;
use crate::files::temp_file::TempPath;
use crate::site::Site;

/// Words of value of each key in the zone.
const VALUES: usize = 5;
/// The smallest zone: two pages.
const SMALLEST: u64 = 2 * 4096;

struct Draft {
    settings: CacheSettings,
    zone: Option<(String, u64)>,
}

/// Reads the directive.
pub fn set_path(s: &mut Scope<'_, '_>, d: &Directive, tag: &'static str) -> Result<(), Error> {
    let Some(first) = d.args.first() else { return Ok(()) };
    let name = first.bytes.strip_suffix(b"/").unwrap_or(&first.bytes);
    let directory = s.setup.path(name);
    let mut draft = Draft::new(directory.clone());
    for word in d.args.iter().skip(1) {
        draft.parameter(d, word)?;
    }
    let Some((name, size)) = draft.zone.filter(|(name, _)| !name.is_empty()) else {
        let text = format!("\"{}\" must have \"keys_zone\" parameter", d.name.lossy());
        return Err(d.error(text));
    };
    let Inputs { zones, sources, .. } = s.setup.inputs;
    s.setup.path_names.add_cache(d, &directory, sources)?;
    let key = directory.to_string_lossy().into_owned();
    let levels = Some(draft.settings.place.levels.clone());
    let purpose = Use { key, levels, ..Use::of(tag, VALUES) };
    let zone = zones.declare(&name, size, purpose).map_err(|text| d.error(text))?;
    if s.setup.caches.iter().any(|cache| cache.name() == name) {
        return Err(d.error(format!("duplicate zone \"{name}\"")));
    }
    s.setup.temp_path(TempPath { directory, levels: Vec::new() });
    let before = s.setup.inputs.before.and_then(|before| before.downcast_ref::<Site>());
    // Locations that are taken over from the last site use its caches.
    let before = before.or(s.setup.previous_site());
    let mut known = before.into_iter().flat_map(|site| &site.caches);
    // A process serves two sites at a time only if both have the same zones, so the sizes are
    // equal.
    let same =
        |cache: &&Arc<Cache>| cache.name() == zone.name() && cache.settings == draft.settings;
    let cache = known.find(same).cloned();
    s.setup.caches.push(cache.unwrap_or_else(|| Arc::new(Cache::new(draft.settings, zone))));
    Ok(())
}

impl Draft {
    fn new(directory: PathBuf) -> Draft {
        let settings = CacheSettings {
            place: CacheDirectory { directory, levels: Vec::new() },
            use_temp_path: true,
            inactive: Duration::from_secs(600),
            max_size: None,
            min_free: 0,
            loader: Pace::default(),
            manager: Pace::default(),
        };
        Draft { settings, zone: None }
    }

    fn parameter(&mut self, d: &Directive, word: &Word) -> Result<(), Error> {
        let text = word.bytes.as_slice();
        let at = text.iter().position(|b| *b == b'=').unwrap_or(text.len());
        let (name, value) = (&text[..at], text.get(at + 1..).unwrap_or_default());
        let shown = word.lossy();
        let invalid = |what: &str| d.error_at(word, format!("invalid {what} value \"{shown}\""));
        let settings = &mut self.settings;
        match name {
            b"levels" => {
                let bad = || d.error_at(word, format!("invalid \"levels\" \"{shown}\""));
                settings.place.levels = levels(value).ok_or_else(bad)?;
            }
            b"use_temp_path" => {
                let text = "use_temp_path value";
                let bad = || {
                    let rest = "it must be \"on\" or \"off\"";
                    d.error_at(word, format!("invalid {text} \"{shown}\", {rest}"))
                };
                settings.use_temp_path = values::flag(value).ok_or_else(bad)?;
            }
            b"keys_zone" => self.zone = Some(zone(d, word, value)?),
            b"inactive" => {
                let seconds = values::sec(value).ok_or_else(|| invalid("inactive"))?;
                settings.inactive = Duration::from_secs(seconds);
            }
            b"max_size" => {
                settings.max_size = Some(values::offset(value).ok_or_else(|| invalid("max_size"))?);
            }
            b"min_free" => {
                settings.min_free = values::offset(value).ok_or_else(|| invalid("min_free"))?;
            }
            _ => {
                let name = String::from_utf8_lossy(name).into_owned();
                let known = match name.split_once('_') {
                    Some(("loader", part)) => pace(&mut settings.loader, part, value),
                    Some(("manager", part)) => pace(&mut settings.manager, part, value),
                    _ => None,
                };
                return match known {
                    Some(true) => Ok(()),
                    Some(false) => Err(invalid(&name)),
                    None => Err(d.error_at(word, format!("invalid parameter \"{shown}\""))),
                };
            }
        }
        Ok(())
    }
}

/// Sets a part of a pace. Returns whether the value is valid; `None` if there is no such part.
fn pace(pace: &mut Pace, part: &str, value: &[u8]) -> Option<bool> {
    let time = match part {
        "files" => {
            let files = values::number(value).and_then(|n| usize::try_from(n).ok());
            pace.files = files.unwrap_or(pace.files);
            return Some(files.is_some());
        }
        "sleep" => &mut pace.sleep,
        "threshold" => &mut pace.threshold,
        _ => return None,
    };
    let read = values::duration(value);
    *time = read.unwrap_or(*time);
    Some(read.is_some())
}

/// `1:2`: up to three levels of one or two digits, or none.
fn levels(value: &[u8]) -> Option<Vec<usize>> {
    if value.is_empty() {
        return Some(Vec::new());
    }
    let level = |part: &[u8]| match part {
        b"1" => Some(1),
        b"2" => Some(2),
        _ => None,
    };
    let levels: Option<Vec<usize>> = value.split(|b| *b == b':').map(level).collect();
    levels.filter(|levels| levels.len() <= 3)
}

fn zone(d: &Directive, word: &Word, value: &[u8]) -> Result<(String, u64), Error> {
    let invalid = || d.invalid("keys zone size", word);
    let colon = value.iter().position(|b| *b == b':').ok_or_else(invalid)?;
    let size = value.get(colon + 1..).and_then(values::size).ok_or_else(invalid)?;
    if size < SMALLEST {
        return Err(d.error_at(word, format!("keys zone \"{}\" is too small", word.lossy())));
    }
    Ok((String::from_utf8_lossy(&value[..colon]).into_owned(), size))
}

#[cfg(test)]
mod tests {
    #[test]
    fn levels_are_up_to_three() {
        assert_eq!(super::levels(b"1:2"), Some(vec![1, 2]));
        assert_eq!(super::levels(b"2:2:1"), Some(vec![2, 2, 1]));
        assert_eq!(super::levels(b""), Some(Vec::new()));
        for bad in [b"3".as_slice(), b"1:", b"1:1:1:1", b"1:2x"] {
            assert_eq!(super::levels(bad), None);
        }
    }
}
