//! The directories of caches and temporary files. A directory has one use and one structure of
//! subdirectories. nginx: ngx_add_path().

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;

use weir_conf::{Contexts, Directive, Error, Pos, Sources};

/// The default directories of `..._temp_path`, with nginx's levels. weir's own have no levels.
const DEFAULTS: [(&str, &[usize]); 5] = [
    ("client_body_temp", &[]),
    ("proxy_temp", &[1, 2]),
    ("fastcgi_temp", &[1, 2]),
    ("uwsgi_temp", &[1, 2]),
    ("scgi_temp", &[1, 2]),
];

/// The directories so far.
#[derive(Debug, Default)]
pub struct PathNames {
    list: Vec<PathName>,
    /// The number of uses of each `..._temp_path` in `http`, and in `server` blocks.
    said: HashMap<Vec<u8>, [usize; 2]>,
}

#[derive(Debug)]
struct PathName {
    directory: Box<OsStr>,
    /// The levels of a directory for temporary files. `None` for a cache, which shares its
    /// directory with nothing.
    levels: Option<Vec<usize>>,
    at: Pos,
}

impl PathNames {
    /// Adds the directory of a cache.
    pub fn add_cache(&mut self, d: &Directive, path: &Path, all: &Sources) -> Result<(), Error> {
        self.add(d, path, None, all)
    }

    /// Adds a directory for temporary files, which a line in this context names.
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

    /// Called at the end of the block, with the number of servers. Checks the default directories,
    /// which servers without `..._temp_path` use.
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

    /// The directory with exactly this name.
    fn find(&self, path: &Path) -> Option<&PathName> {
        self.list.iter().find(|known| *known.directory == *path.as_os_str())
    }
}

/// `FILE:LINE`
fn place(all: &Sources, at: Pos) -> String {
    let name = all.get(at.file).map(|source| source.name.display().to_string());
    format!("{}:{}", name.unwrap_or_default(), at.line)
}
