//! Types by file name extension.

use weir_proto::uri;

use crate::request::Request;

impl Request {
    /// Gives the answer the type that the path's extension stands for (`types`, `default_type`), unless it
    /// has one.
    pub fn set_content_type(&mut self) {
        if !self.response.content_type.is_empty() {
            return;
        }
        let core = &self.conf().core;
        let extension = uri::extension(&self.path).and_then(|range| self.path.get(range));
        let known = extension.filter(|e| !e.is_empty()).and_then(|e| {
            if e.iter().any(u8::is_ascii_uppercase) {
                return core.types.get(e.to_ascii_lowercase().as_slice());
            }
            core.types.get(e)
        });
        let kind = known.unwrap_or(&core.default_type);
        self.response.content_type.extend_from_slice(kind);
    }
}
