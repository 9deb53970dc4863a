//! The answer. Handlers fill in [`response`], header filters and [`change`] change it, [`head`] writes the head, bodies pass
//! [`filters`] and codings, and [`output`] sends the bytes.

pub mod change;
mod content_type;
pub mod cutter;
pub mod errors;
pub mod filters;
pub mod head;
pub mod headers;
pub mod output;
pub mod rate;
pub mod response;
pub mod special;
