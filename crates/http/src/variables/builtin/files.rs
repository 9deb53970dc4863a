//! Variables of the request's files.

use crate::files::realpath;
use crate::request::Request;
use crate::variables::value::ReadVariable;

pub const TABLE: &[(&str, ReadVariable)] = &[
    ("request_filename", |r, out| {
        let core = &r.conf().core;
        core.map_path_into(r, out).is_ok()
    }),
    ("document_root", |r, out| {
        let core = &r.conf().core;
        core.root_into(r, out);
        true
    }),
    ("realpath_root", realpath::value),
    ("request_body_file", request_body_file),
];

fn request_body_file(r: &mut Request, out: &mut Vec<u8>) -> bool {
    let Some(file) = &r.body.file else { return false };
    out.extend_from_slice(file.file.path.as_os_str().as_encoded_bytes());
    true
}
