//! Directories that the configuration names for caches and for temporary files: each has one use, and one kind of
//! subdirectories. nginx: ngx_add_path().

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;

use weir_conf::{Contexts, Directive, Error, Pos, Sources};

/// Directories where no `..._temp_path` names one, and nginx's levels of them; weir has none in its own.
const DEFAULTS: [(&str, &[usize]); 5] = [
    ("client_body_temp", &[]),
    ("proxy_temp", &[1, 2]),
    ("fastcgi_temp", &[1, 2]),
    ("uwsgi_temp", &[1, 2]),
    ("scgi_temp", &[1, 2]),
];

/// The directories that were named so far.
#[derive(Debug, Default)]
pub struct PathNames {
    list: Vec<PathName>,
    /// How often each `..._temp_path` stands in `http`, and how often in a `server`.
    said: HashMap<Vec<u8>, [usize; 2]>,
}

#[derive(Debug)]
struct PathName {
    directory: Box<OsStr>,
    /// Those of temporary files. A cache has its directory for itself.
    levels: Option<Vec<usize>>,
    at: Pos,
}

impl PathNames {
    /// A cache of its own in this directory.
    pub fn add_cache(&mut self, d: &Directive, path: &Path, all: &Sources) -> Result<(), Error> {
        self.add(d, path, None, all)
    }

    /// Temporary files in this directory, as a line in such a context says.
    pub fn add_temporary(
        &mut self,
        (d, context): (&Directive, Contexts),
        path: &Path,
        levels: &[usize],
        all: &Sources,
    ) -> Result<(), Error> {
        let said = self.said.entry(d.name.bytes.clone()).or_default();
        said[0] += usize::from(context == Contexts::HTTP);
        said[1] += usize::from(context == Contexts::SERVER);
        self.add(d, path, Some(levels), all)
    }

    fn add(
        &mut self,
        d: &Directive,
        path: &Path,
        levels: Option<&[usize]>,
        all: &Sources,
    ) -> Result<(), Error> {
        let Some(known) = self.find(path) else {
            let (directory, levels) = (path.as_os_str().into(), levels.map(<[_]>::to_vec));
            self.list.push(PathName { directory, levels, at: d.end });
            return Ok(());
        };
        let (name, place) = (path.display(), place(all, known.at));
        match (&known.levels, levels) {
            (Some(known), Some(levels)) if known == levels => Ok(()),
            (Some(_), Some(_)) => Err(d.error(format!(
                "the same path name \"{name}\" in {place} has the different levels than"
            ))),
            _ => Err(d.error(format!("the same path name \"{name}\" used in {place} and"))),
        }
    }

    /// The whole block was read, with so many servers, up to its end: looks at the directories that are used because a
    /// server names none.
    pub fn end(
        &self,
        servers: usize,
        temporary: &Path,
        end: Pos,
        all: &Sources,
    ) -> Result<(), Error> {
        for (name, levels) in DEFAULTS {
            let directive = format!("{name}_path");
            let [everywhere, each] = self.said.get(directive.as_bytes()).copied().unwrap_or([0; 2]);
            let path = temporary.join(name);
            let Some(known) = self.find(&path) else { continue };
            if everywhere > 0 || each >= servers {
                continue;
            }
            let (name, place) = (path.display(), place(all, known.at));
            match &known.levels {
                Some(known) if known == levels => {}
                Some(_) => {
                    return Err(Error::emerg(format!(
                        "the path name \"{name}\" in {place} has the same name as default path, but the different \
                         levels, you need to define default path in http section"
                    )));
                }
                None => {
                    let text = format!("the same path name \"{name}\" used in {place} and");
                    return Err(Error::emerg(text).at(end).mark(known.at));
                }
            }
        }
        Ok(())
    }

    /// Two names are the same if they are written alike.
    fn find(&self, path: &Path) -> Option<&PathName> {
        self.list.iter().find(|known| *known.directory == *path.as_os_str())
    }
}

/// `FILE:LINE`
fn place(all: &Sources, at: Pos) -> String {
    let name = all.get(at.file).map(|source| source.name.display().to_string());
    format!("{}:{}", name.unwrap_or_default(), at.line)
}
