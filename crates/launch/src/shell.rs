//! Splits and quotes words like a shell, for options that hold whole command lines.

/// A quotation mark that is never closed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("an opening {0} is never closed")]
pub struct Unclosed(pub char);

/// Splits a text into words: at spaces, but not inside quotation marks or after a backslash.
pub fn split(text: &str) -> Result<Vec<String>, Unclosed> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut mark = None;
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match (c, mark) {
            (c, Some(open)) if c == open => mark = None,
            ('\'' | '"', None) => {
                mark = Some(c);
                word.get_or_insert_default();
            }
            ('\\', None | Some('"')) => word.get_or_insert_default().extend(rest.next()),
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    mark.map_or(Ok(words), |open| Err(Unclosed(open)))
}

/// Quotes a word so that a shell reads it back unchanged.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@%+^".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_in_a_shell() {
        let cases: [(&str, &[&str]); 7] = [
            ("", &[]),
            ("  -x  A --tag-output ", &["-x", "A", "--tag-output"]),
            ("-mca plm_rsh_args \"-p 22 -i k\"", &["-mca", "plm_rsh_args", "-p 22 -i k"]),
            ("'a b'c d\\ e", &["a bc", "d e"]),
            ("''", &[""]),
            (r#""a\"b" 'c\d'"#, &[r#"a"b"#, r"c\d"]),
            ("a\\", &["a"]),
        ];
        for (text, expected) in cases {
            assert_eq!(split(text).unwrap(), expected, "{text}");
        }
        assert_eq!(split("a 'b"), Err(Unclosed('\'')));
    }

    #[test]
    fn a_quoted_word_is_read_back_unchanged() {
        for word in ["", "a", "a b", "it's", "$HOME", "^openib", "a\\b"] {
            assert_eq!(split(&quote(word)).unwrap(), [word]);
        }
    }
}
