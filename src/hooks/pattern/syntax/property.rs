//! The names of properties in `\p{…}`.

/// A Unicode category or script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnicodeProperty(u16);

impl UnicodeProperty {
    /// Finds a property as Go 1.25 and later do: case, spaces, `_` and `-` are ignored.
    pub fn find(name: &str) -> Option<Self> {
        let loose: String = name
            .chars()
            .filter(|c| !matches!(c, ' ' | '_' | '-'))
            .map(|c| c.to_ascii_lowercase())
            .collect();
        let index = NAMES.binary_search_by(|(known, _)| (*known).cmp(&loose)).ok()?;
        u16::try_from(index).ok().map(Self)
    }

    /// Returns the index in [`NAMES`].
    pub fn index(self) -> usize {
        self.0.into()
    }

    /// Returns the name for `regex-syntax`.
    pub fn query(self) -> &'static str {
        NAMES[self.index()].1
    }
}

/// All names that Go knows, in lower case without spaces, `_` and `-`, with their names in
/// `regex-syntax`; sorted for binary search.
///
/// Go accepts categories, their aliases and long names of scripts; `regex-syntax` would accept far
/// more. Scripts newer than the Unicode version of `regex-syntax` are omitted.
#[rustfmt::skip]
pub static NAMES: [(&str, &str); 253] = [
    ("adlam", "sc=adlam"), ("ahom", "sc=ahom"), ("anatolianhieroglyphs", "sc=anatolianhieroglyphs"),
    ("any", "any"), ("arabic", "sc=arabic"), ("armenian", "sc=armenian"), ("ascii", "ascii"),
    ("assigned", "assigned"), ("avestan", "sc=avestan"), ("balinese", "sc=balinese"),
    ("bamum", "sc=bamum"), ("bassavah", "sc=bassavah"), ("batak", "sc=batak"),
    ("bengali", "sc=bengali"), ("bhaiksuki", "sc=bhaiksuki"), ("bopomofo", "sc=bopomofo"),
    ("brahmi", "sc=brahmi"), ("braille", "sc=braille"), ("buginese", "sc=buginese"),
    ("buhid", "sc=buhid"), ("c", "gc=c"), ("canadianaboriginal", "sc=canadianaboriginal"),
    ("carian", "sc=carian"), ("casedletter", "gc=lc"),
    ("caucasianalbanian", "sc=caucasianalbanian"), ("cc", "gc=cc"), ("cf", "gc=cf"),
    ("chakma", "sc=chakma"), ("cham", "sc=cham"), ("cherokee", "sc=cherokee"),
    ("chorasmian", "sc=chorasmian"), ("closepunctuation", "gc=pe"), ("cn", "gc=cn"),
    ("cntrl", "gc=cc"), ("co", "gc=co"), ("combiningmark", "gc=m"), ("common", "sc=common"),
    ("connectorpunctuation", "gc=pc"), ("control", "gc=cc"), ("coptic", "sc=coptic"),
    ("cs", "gc=cs"), ("cuneiform", "sc=cuneiform"), ("currencysymbol", "gc=sc"),
    ("cypriot", "sc=cypriot"), ("cyprominoan", "sc=cyprominoan"), ("cyrillic", "sc=cyrillic"),
    ("dashpunctuation", "gc=pd"), ("decimalnumber", "gc=nd"), ("deseret", "sc=deseret"),
    ("devanagari", "sc=devanagari"), ("digit", "gc=nd"), ("divesakuru", "sc=divesakuru"),
    ("dogra", "sc=dogra"), ("duployan", "sc=duployan"),
    ("egyptianhieroglyphs", "sc=egyptianhieroglyphs"), ("elbasan", "sc=elbasan"),
    ("elymaic", "sc=elymaic"), ("enclosingmark", "gc=me"), ("ethiopic", "sc=ethiopic"),
    ("finalpunctuation", "gc=pf"), ("format", "gc=cf"), ("garay", "sc=garay"),
    ("georgian", "sc=georgian"), ("glagolitic", "sc=glagolitic"), ("gothic", "sc=gothic"),
    ("grantha", "sc=grantha"), ("greek", "sc=greek"), ("gujarati", "sc=gujarati"),
    ("gunjalagondi", "sc=gunjalagondi"), ("gurmukhi", "sc=gurmukhi"),
    ("gurungkhema", "sc=gurungkhema"), ("han", "sc=han"), ("hangul", "sc=hangul"),
    ("hanifirohingya", "sc=hanifirohingya"), ("hanunoo", "sc=hanunoo"), ("hatran", "sc=hatran"),
    ("hebrew", "sc=hebrew"), ("hiragana", "sc=hiragana"), ("imperialaramaic", "sc=imperialaramaic"),
    ("inherited", "sc=inherited"), ("initialpunctuation", "gc=pi"),
    ("inscriptionalpahlavi", "sc=inscriptionalpahlavi"),
    ("inscriptionalparthian", "sc=inscriptionalparthian"), ("javanese", "sc=javanese"),
    ("kaithi", "sc=kaithi"), ("kannada", "sc=kannada"), ("katakana", "sc=katakana"),
    ("kawi", "sc=kawi"), ("kayahli", "sc=kayahli"), ("kharoshthi", "sc=kharoshthi"),
    ("khitansmallscript", "sc=khitansmallscript"), ("khmer", "sc=khmer"), ("khojki", "sc=khojki"),
    ("khudawadi", "sc=khudawadi"), ("kiratrai", "sc=kiratrai"), ("l", "gc=l"), ("lao", "sc=lao"),
    ("latin", "sc=latin"), ("lc", "gc=lc"), ("lepcha", "sc=lepcha"), ("letter", "gc=l"),
    ("letternumber", "gc=nl"), ("limbu", "sc=limbu"), ("lineara", "sc=lineara"),
    ("linearb", "sc=linearb"), ("lineseparator", "gc=zl"), ("lisu", "sc=lisu"), ("ll", "gc=ll"),
    ("lm", "gc=lm"), ("lo", "gc=lo"), ("lowercaseletter", "gc=ll"), ("lt", "gc=lt"),
    ("lu", "gc=lu"), ("lycian", "sc=lycian"), ("lydian", "sc=lydian"), ("m", "gc=m"),
    ("mahajani", "sc=mahajani"), ("makasar", "sc=makasar"), ("malayalam", "sc=malayalam"),
    ("mandaic", "sc=mandaic"), ("manichaean", "sc=manichaean"), ("marchen", "sc=marchen"),
    ("mark", "gc=m"), ("masaramgondi", "sc=masaramgondi"), ("mathsymbol", "gc=sm"), ("mc", "gc=mc"),
    ("me", "gc=me"), ("medefaidrin", "sc=medefaidrin"), ("meeteimayek", "sc=meeteimayek"),
    ("mendekikakui", "sc=mendekikakui"), ("meroiticcursive", "sc=meroiticcursive"),
    ("meroitichieroglyphs", "sc=meroitichieroglyphs"), ("miao", "sc=miao"), ("mn", "gc=mn"),
    ("modi", "sc=modi"), ("modifierletter", "gc=lm"), ("modifiersymbol", "gc=sk"),
    ("mongolian", "sc=mongolian"), ("mro", "sc=mro"), ("multani", "sc=multani"),
    ("myanmar", "sc=myanmar"), ("n", "gc=n"), ("nabataean", "sc=nabataean"),
    ("nagmundari", "sc=nagmundari"), ("nandinagari", "sc=nandinagari"), ("nd", "gc=nd"),
    ("newa", "sc=newa"), ("newtailue", "sc=newtailue"), ("nko", "sc=nko"), ("nl", "gc=nl"),
    ("no", "gc=no"), ("nonspacingmark", "gc=mn"), ("number", "gc=n"), ("nushu", "sc=nushu"),
    ("nyiakengpuachuehmong", "sc=nyiakengpuachuehmong"), ("ogham", "sc=ogham"),
    ("olchiki", "sc=olchiki"), ("oldhungarian", "sc=oldhungarian"), ("olditalic", "sc=olditalic"),
    ("oldnortharabian", "sc=oldnortharabian"), ("oldpermic", "sc=oldpermic"),
    ("oldpersian", "sc=oldpersian"), ("oldsogdian", "sc=oldsogdian"),
    ("oldsoutharabian", "sc=oldsoutharabian"), ("oldturkic", "sc=oldturkic"),
    ("olduyghur", "sc=olduyghur"), ("olonal", "sc=olonal"), ("openpunctuation", "gc=ps"),
    ("oriya", "sc=oriya"), ("osage", "sc=osage"), ("osmanya", "sc=osmanya"), ("other", "gc=c"),
    ("otherletter", "gc=lo"), ("othernumber", "gc=no"), ("otherpunctuation", "gc=po"),
    ("othersymbol", "gc=so"), ("p", "gc=p"), ("pahawhhmong", "sc=pahawhhmong"),
    ("palmyrene", "sc=palmyrene"), ("paragraphseparator", "gc=zp"), ("paucinhau", "sc=paucinhau"),
    ("pc", "gc=pc"), ("pd", "gc=pd"), ("pe", "gc=pe"), ("pf", "gc=pf"), ("phagspa", "sc=phagspa"),
    ("phoenician", "sc=phoenician"), ("pi", "gc=pi"), ("po", "gc=po"), ("privateuse", "gc=co"),
    ("ps", "gc=ps"), ("psalterpahlavi", "sc=psalterpahlavi"), ("punct", "gc=p"),
    ("punctuation", "gc=p"), ("rejang", "sc=rejang"), ("runic", "sc=runic"), ("s", "gc=s"),
    ("samaritan", "sc=samaritan"), ("saurashtra", "sc=saurashtra"), ("sc", "gc=sc"),
    ("separator", "gc=z"), ("sharada", "sc=sharada"), ("shavian", "sc=shavian"),
    ("siddham", "sc=siddham"), ("signwriting", "sc=signwriting"), ("sinhala", "sc=sinhala"),
    ("sk", "gc=sk"), ("sm", "gc=sm"), ("so", "gc=so"), ("sogdian", "sc=sogdian"),
    ("sorasompeng", "sc=sorasompeng"), ("soyombo", "sc=soyombo"), ("spaceseparator", "gc=zs"),
    ("spacingmark", "gc=mc"), ("sundanese", "sc=sundanese"), ("sunuwar", "sc=sunuwar"),
    ("surrogate", "gc=cs"), ("sylotinagri", "sc=sylotinagri"), ("symbol", "gc=s"),
    ("syriac", "sc=syriac"), ("tagalog", "sc=tagalog"), ("tagbanwa", "sc=tagbanwa"),
    ("taile", "sc=taile"), ("taitham", "sc=taitham"), ("taiviet", "sc=taiviet"),
    ("takri", "sc=takri"), ("tamil", "sc=tamil"), ("tangsa", "sc=tangsa"), ("tangut", "sc=tangut"),
    ("telugu", "sc=telugu"), ("thaana", "sc=thaana"), ("thai", "sc=thai"),
    ("tibetan", "sc=tibetan"), ("tifinagh", "sc=tifinagh"), ("tirhuta", "sc=tirhuta"),
    ("titlecaseletter", "gc=lt"), ("todhri", "sc=todhri"), ("toto", "sc=toto"),
    ("tulutigalari", "sc=tulutigalari"), ("ugaritic", "sc=ugaritic"), ("unassigned", "gc=cn"),
    ("uppercaseletter", "gc=lu"), ("vai", "sc=vai"), ("vithkuqi", "sc=vithkuqi"),
    ("wancho", "sc=wancho"), ("warangciti", "sc=warangciti"), ("yezidi", "sc=yezidi"),
    ("yi", "sc=yi"), ("z", "gc=z"), ("zanabazarsquare", "sc=zanabazarsquare"), ("zl", "gc=zl"),
    ("zp", "gc=zp"), ("zs", "gc=zs"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_loosely() {
        for name in ["Old_Persian", "oldpersian", "OLD PERSIAN", "old-persian"] {
            assert_eq!(
                UnicodeProperty::find(name).map(UnicodeProperty::query),
                Some("sc=oldpersian"),
                "{name}"
            );
        }
        assert_eq!(
            UnicodeProperty::find("Uppercase_Letter").map(UnicodeProperty::query),
            Some("gc=lu")
        );
    }

    #[test]
    fn property_names_of_other_engines_are_rejected() {
        for name in ["", "sc=Greek", "isGreek", "Grek", "Alphabetic", "Emoji", "Xan"] {
            assert_eq!(UnicodeProperty::find(name), None, "{name}");
        }
    }
}
