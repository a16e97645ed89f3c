//! Signatures of requests (Signature Version 4).

use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::{
    http_request::{
        PercentEncodingMode, SignableBody, SignableRequest, SignatureLocation, SigningInstructions, SigningSettings,
        UriPathNormalizationMode, sign,
    },
    sign::v4,
};
use sandbox_core::{Result, SandboxError};

use super::region::Service;

/// What is signed.
pub(crate) struct Unsigned<'a> {
    pub(crate) service: &'a str,
    pub(crate) region: &'a str,
    pub(crate) method: &'a str,
    pub(crate) url: &'a str,
    pub(crate) headers: &'a [(&'static str, String)],
    pub(crate) body: &'a [u8],
}

impl<'a> Unsigned<'a> {
    /// A POST with this body.
    pub(crate) fn post(
        service: Service,
        region: &'a str,
        url: &'a str,
        headers: &'a [(&'static str, String)],
        body: &'a [u8],
    ) -> Self {
        Self { service: service.name(), region, method: "POST", url, headers, body }
    }

    /// The headers to add.
    ///
    /// # Errors
    /// `Internal`: nothing of this depends on input.
    pub(crate) fn sign(&self, credentials: &Credentials, now: SystemTime) -> Result<Vec<(String, String)>> {
        let instructions =
            self.instructions(credentials, now, SigningSettings::default(), SignableBody::Bytes(self.body))?;
        Ok(instructions.headers().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// The query with which anybody may ask this of S3, for so long, with any body.
    ///
    /// # Errors
    /// As [`Unsigned::sign`].
    pub(crate) fn presign(&self, credentials: &Credentials, now: SystemTime, valid: Duration) -> Result<String> {
        let mut settings = SigningSettings::default();
        settings.signature_location = SignatureLocation::QueryParams;
        settings.expires_in = Some(valid);
        // As S3 has it.
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        let instructions = self.instructions(credentials, now, settings, SignableBody::UnsignedPayload)?;
        let pairs = instructions.params().iter().map(|(name, value)| format!("{name}={}", escaped(value)));
        Ok(pairs.collect::<Vec<_>>().join("&"))
    }

    fn instructions(
        &self,
        credentials: &Credentials,
        now: SystemTime,
        settings: SigningSettings,
        body: SignableBody<'_>,
    ) -> Result<SigningInstructions> {
        let failed = |what: &str| SandboxError::internal(format!("a request could not be signed: {what}"));
        let identity = credentials.clone().into();
        let parameters = v4::SigningParams::builder()
            .identity(&identity)
            .region(self.region)
            .name(self.service)
            .time(now)
            .settings(settings)
            .build()
            .map_err(|_| failed("a part is missing"))?
            .into();
        let headers = self.headers.iter().map(|(name, value)| (*name, value.as_str()));
        let request = SignableRequest::new(self.method, self.url, headers, body).map_err(|_| failed("its address"))?;
        Ok(sign(request, &parameters).map_err(|_| failed("its parts"))?.into_parts().0)
    }
}

/// A value of a query.
fn escaped(text: &str) -> String {
    let mut all = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'~' => all.push(byte as char),
            byte => all.push_str(&format!("%{byte:02X}")),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use aws_credential_types::Credentials;

    use super::Unsigned;

    fn signed(
        method: &str,
        headers: &[(&'static str, String)],
        body: &[u8],
        token: Option<&str>,
    ) -> Vec<(String, String)> {
        let secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
        let credentials = Credentials::new("AKIDEXAMPLE", secret, token.map(str::to_owned), None, "test");
        let url = "https://example.amazonaws.com/";
        let request = Unsigned { service: "service", region: "us-east-1", method, url, headers, body };
        // 2015-08-30T12:36:00Z
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_440_938_160);
        request.sign(&credentials, now).unwrap()
    }

    fn header<'a>(headers: &'a [(String, String)], name: &str) -> &'a str {
        headers.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// `get-vanilla` and `post-vanilla` of the test suite that AWS published for this signature.
    #[test]
    fn signatures_are_those_of_the_published_examples() {
        for (method, signature) in [
            ("GET", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
            ("POST", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        ] {
            let headers = signed(method, &[], b"", None);
            let expected = format!(
                "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
                 SignedHeaders=host;x-amz-date, Signature={signature}"
            );
            assert_eq!(header(&headers, "authorization"), expected);
            assert_eq!(header(&headers, "x-amz-date"), "20150830T123600Z");
        }
    }

    #[test]
    fn the_body_the_target_and_the_token_are_signed_too() {
        let target = [("x-amz-target", "A.B".to_owned())];
        let first = signed("POST", &target, b"{}", Some("token"));
        assert!(header(&first, "authorization").contains("x-amz-security-token;x-amz-target"), "{first:?}");
        assert_eq!(header(&first, "x-amz-security-token"), "token");
        let second = signed("POST", &target, b"{ }", Some("token"));
        assert_ne!(header(&first, "authorization"), header(&second, "authorization"));
    }
    /// The example of the reference of S3.
    #[test]
    fn a_query_that_is_signed_is_that_of_the_published_example() {
        let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
        let credentials = Credentials::new("AKIAIOSFODNN7EXAMPLE", secret, None, None, "test");
        let url = "https://examplebucket.s3.amazonaws.com/test.txt";
        let request = Unsigned { service: "s3", region: "us-east-1", method: "GET", url, headers: &[], body: b"" };
        // 2013-05-24T00:00:00Z
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_369_353_600);
        let query = request.presign(&credentials, now, Duration::from_secs(86_400)).unwrap();
        for part in [
            "X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404",
            "X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request",
            "X-Amz-Expires=86400",
        ] {
            assert!(query.split('&').any(|pair| pair == part), "{part} is not in {query}");
        }
    }
}
