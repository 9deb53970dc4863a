//! Sends an FLV file from a byte offset on. nginx: ngx_http_flv_module.

use bytes::Bytes;
use weir_conf::{Directive as Line, Error, values};
use weir_engine::{Boxed, Chain, Segment};
use weir_proto::uri;

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::modules::static_;
use crate::phases::{Answer, Later, Step};
use crate::request::Request;
use crate::site::content::ContentHandler;

const DIRECTIVES: &[Directive] = &[Directive {
    name: "flv",
    help: "Sends FLV files from the byte offset `start` of the query on.",
    set: Set::Simple(set),
}];

/// The module.
pub const MODULE: Module = Module { name: "http_flv", directives: DIRECTIVES, ..Module::NEW };

/// The header of a partial file: signature, version, audio and video, the header's length, and the
/// size of the previous tag, 0.
const HEADER: &[u8] = b"FLV\x01\x05\0\0\0\x09\0\0\0\0";

/// The content handler.
static CONTENT: ContentHandler<()> = ContentHandler {
    module: "flv",
    in_limit_except: false,
    optional: false,
    run: |r, ()| Answer::Later(handler(r)),
};

/// The content handler of a location with `flv`.
fn handler(r: &mut Request) -> Later<'_> {
    Boxed::new(move || send(r))
}

async fn send(r: &mut Request) -> Step {
    let (opened, _) = match static_::open_file(r).await {
        Ok(opened) => opened,
        Err(step) => return step,
    };
    let size = opened.info.len;
    let start = uri::arg(&r.args, b"start").and_then(values::number);
    let start = start.filter(|start| *start < size).unwrap_or(0);
    let mut chain = Chain::new();
    if start > 0 {
        chain.push(Bytes::from_static(HEADER));
    }
    chain.push(Segment::File { file: opened.file.clone(), offset: start, len: size - start });
    static_::send_part(r, &opened, chain).await
}

fn set(s: &mut Scope<'_, '_>, _: &Line) -> Result<(), Error> {
    s.answer_with(CONTENT.with(()));
    Ok(())
}
