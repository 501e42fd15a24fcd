//! Whose a sandbox is where it is not shown to them: what builds use counts as their owner's.

/// How the owners of sandboxes begin in which templates are built: nobody sees those in a listing.
const BUILDS: &str = "template-builds";

/// Who owns the sandboxes in which this owner's templates are built.
pub fn builder_of(owner: &str) -> String {
    format!("{BUILDS}:{owner}")
}

/// Whose quota a sandbox of this owner counts for.
pub fn tenant_of(owner: &str) -> &str {
    match owner.strip_prefix(BUILDS) {
        Some(rest) => rest.strip_prefix(':').unwrap_or(rest),
        None => owner,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_builds_use_counts_as_their_owners() {
        assert_eq!((tenant_of(&builder_of("me")), tenant_of("me")), ("me", "me"));
        assert_ne!(tenant_of(&builder_of("me")), tenant_of(&builder_of("them")));
        assert_eq!(tenant_of(BUILDS), "", "of an earlier version");
    }
}
