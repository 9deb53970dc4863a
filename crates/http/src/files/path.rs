//! The file that a request's path stands for: `root`, `alias`.

use std::path::PathBuf;

use crate::files;
use crate::request::Request;
use crate::site::core::{Conf, StandsFor};

impl Conf {
    /// The file that the request's path stands for: `$request_filename`.
    pub fn map_path(&self, r: &mut Request) -> PathBuf {
        use std::os::unix::ffi::OsStringExt;
        let mut path = Vec::new();
        let _ = self.map_path_into(r, &mut path);
        PathBuf::from(std::ffi::OsString::from_vec(path))
    }

    /// Appends the file's path: `root` with the whole path, `alias` with what follows the location's name.
    /// An error is the answer's status where there is no such path; the log was told.
    pub fn map_path_into(&self, r: &mut Request, out: &mut Vec<u8>) -> Result<(), u16> {
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
            return Err(403);
        }
        Ok(())
    }

    /// What `root` or `alias` names for this request. An error as above.
    pub fn root_path(&self, r: &mut Request) -> Result<Vec<u8>, u16> {
        let mut out = Vec::new();
        self.root_path_into(r, &mut out)?;
        if files::climbs(r, &out, &self.root.value) { Err(403) } else { Ok(out) }
    }

    fn root_path_into(&self, r: &mut Request, out: &mut Vec<u8>) -> Result<(), u16> {
        if self.root.is_alias() && r.rewritten_in_place {
            let name = String::from_utf8_lossy(&r.location.name);
            r.log(
                weir_log::Level::Alert,
                format_args!(
                    "\"alias\" cannot be used in location \"{name}\" where URI was rewritten"
                ),
            );
            return Err(500);
        }
        self.root_into(r, out);
        Ok(())
    }

    /// Appends the root itself, absolute: `$document_root`.
    pub fn root_into(&self, r: &mut Request, out: &mut Vec<u8>) {
        let start = out.len();
        self.root.value.eval_into(r, out);
        if out.get(start) != Some(&b'/') {
            let prefix = [r.site.prefix.as_slice(), b"/"].concat();
            out.splice(start..start, prefix);
        }
    }
}
