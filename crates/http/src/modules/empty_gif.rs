//! Answers with a transparent image of one pixel. nginx: ngx_http_empty_gif_module.

use bytes::Bytes;
use weir_proto::http1::Method;

use crate::config::module::Module;
use crate::config::scope::{Directive, Set};
use crate::phases::{Answer, Step};
use crate::request::Request;
use crate::site::content::ContentHandler;

const DIRECTIVES: &[Directive] = &[Directive {
    name: "empty_gif",
    help: "Answers with a transparent image of one pixel.",
    set: Set::Simple(|s, _| {
        s.answer_with(CONTENT.with(()));
        Ok(())
    }),
}];

/// The module.
pub const MODULE: Module = Module { name: "http_empty_gif", directives: DIRECTIVES, ..Module::NEW };

/// GIF89a: a screen of one pixel, a palette of two colours, one of them transparent, and one image.
const GIF: &[u8] = b"GIF89a\x01\x00\x01\x00\x80\x01\x00\x00\x00\x00\xff\xff\xff\
    \x21\xf9\x04\x01\x00\x00\x01\x00\x2c\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02\x4c\x01\x00\x3b";

/// As in nginx: Mon, 28 Sep 1970 06:00:00 GMT. The image never changes.
const MODIFIED: i64 = 23_349_600;

/// The content handler.
static CONTENT: ContentHandler<()> = ContentHandler {
    module: "empty_gif",
    in_limit_except: false,
    optional: false,
    run: |r, ()| Answer::Now(handler(r)),
};

/// The content handler of a location with `empty_gif`.
fn handler(r: &mut Request) -> Step {
    if !matches!(r.method, Method::Get | Method::Head) {
        return Step::Status(405);
    }
    r.response.status = 200;
    r.response.set_type(b"image/gif");
    r.response.last_modified = Some(MODIFIED);
    Step::Respond(Bytes::from_static(GIF))
}
