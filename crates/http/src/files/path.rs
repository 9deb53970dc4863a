//! Maps a request's path to a file: `root` and `alias`.

use std::path::PathBuf;

use crate::files;
use crate::request::Request;
use crate::request::step::Step;
use crate::site::core::{Conf, StandsFor};

/// Why a request's path has no file. It has been logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathError {
    /// `alias` replaces the location's name in the path, and a rewrite has changed the path.
    Rewritten,
    /// The file would be outside of its root.
    Climbs,
}

impl PathError {
    /// The status that the request ends with.
    pub fn status(self) -> u16 {
        match self {
            PathError::Rewritten => 500,
            PathError::Climbs => 403,
        }
    }
}

impl From<PathError> for Step {
    fn from(error: PathError) -> Step {
        Step::Status(error.status())
    }
}

impl Conf {
    /// The file for the request's path: `$request_filename`.
    pub fn map_path(&self, r: &mut Request) -> PathBuf {
        use std::os::unix::ffi::OsStringExt;
        let mut path = Vec::new();
        let _ = self.map_path_into(r, &mut path);
        PathBuf::from(std::ffi::OsString::from_vec(path))
    }

    /// Appends the file's path. With `root` it ends with the whole path, with `alias` with the part
    /// behind the location's name.
    pub fn map_path_into(&self, r: &mut Request, out: &mut Vec<u8>) -> Result<(), PathError> {
        let start = out.len();
        self.root_path_into(r, out)?;
        match self.root.stands_for {
            StandsFor::Nothing => out.extend_from_slice(&r.path),
            StandsFor::Prefix(len) => out.extend_from_slice(r.path.get(len..).unwrap_or_default()),
            StandsFor::Match if r.path_below_alias => out.extend_from_slice(&r.path),
            StandsFor::Match => {}
        }
        if files::climbs(r, &out[start..], &self.root.value) {
            out.truncate(start);
            return Err(PathError::Climbs);
        }
        Ok(())
    }

    /// The value of `root` or `alias` for this request.
    pub fn root_path(&self, r: &mut Request) -> Result<Vec<u8>, PathError> {
        let mut out = Vec::new();
        self.root_path_into(r, &mut out)?;
        if files::climbs(r, &out, &self.root.value) { Err(PathError::Climbs) } else { Ok(out) }
    }

    fn root_path_into(&self, r: &mut Request, out: &mut Vec<u8>) -> Result<(), PathError> {
        if self.root.is_alias() && r.rewritten_in_place {
            let name = String::from_utf8_lossy(&r.location.name);
            r.log(
                weir_log::Level::Alert,
                format_args!(
                    "\"alias\" cannot be used in location \"{name}\" where URI was rewritten"
                ),
            );
            return Err(PathError::Rewritten);
        }
        self.root_into(r, out);
        Ok(())
    }

    /// Appends the root as an absolute path: `$document_root`.
    pub fn root_into(&self, r: &mut Request, out: &mut Vec<u8>) {
        let start = out.len();
        self.root.value.eval_into(r, out);
        if out.get(start) != Some(&b'/') {
            let prefix = [r.site.prefix.as_slice(), b"/"].concat();
            out.splice(start..start, prefix);
        }
    }
}
