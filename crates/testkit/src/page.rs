//! Pages of the documentation.

/// The configurations of a page, in order.
pub fn examples(page: &str) -> impl Iterator<Item = &str> {
    page.split("```nginx\n").skip(1).filter_map(|rest| rest.split("```").next())
}
