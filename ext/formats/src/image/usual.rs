//! What image processors do where their files do not say.

use super::resample::Filter;
use super::size::Target;
use super::CHANNELS;

const CLIP_MEAN: [f64; CHANNELS] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
const CLIP_DEVIATION: [f64; CHANNELS] = [0.268_629_54, 0.261_302_58, 0.275_777_11];
const IMAGENET_MEAN: [f64; CHANNELS] = [0.485, 0.456, 0.406];
const IMAGENET_DEVIATION: [f64; CHANNELS] = [0.229, 0.224, 0.225];
const HALF: [f64; CHANNELS] = [0.5; CHANNELS];

/// What a processor does where its file does not say.
pub(super) struct Usual {
    pub target: Target,
    /// What a lone number as size means.
    pub square: bool,
    pub crop: Option<usize>,
    pub filter: Filter,
    pub mean: [f64; CHANNELS],
    pub deviation: [f64; CHANNELS],
    pub squares: bool,
    pub normalizes: bool,
}

impl Usual {
    const CLIP: Self = Self {
        target: Target::Shortest(224),
        square: false,
        crop: Some(224),
        filter: Filter::Bicubic,
        mean: CLIP_MEAN,
        deviation: CLIP_DEVIATION,
        squares: false,
        normalizes: true,
    };

    const VIT: Self = Self {
        target: Target::Exact {
            width: 224,
            height: 224,
        },
        square: true,
        crop: None,
        filter: Filter::Bilinear,
        mean: HALF,
        deviation: HALF,
        squares: false,
        normalizes: true,
    };

    const SIGLIP: Self = Self {
        filter: Filter::Bicubic,
        ..Self::VIT
    };

    const DEIT: Self = Self {
        target: Target::Exact {
            width: 256,
            height: 256,
        },
        crop: Some(224),
        filter: Filter::Bicubic,
        ..Self::VIT
    };

    const MOBILENET: Self = Self {
        target: Target::Shortest(256),
        square: false,
        crop: Some(224),
        ..Self::VIT
    };

    const EFFICIENTNET: Self = Self {
        target: Target::Exact {
            width: 346,
            height: 346,
        },
        ..Self::SIGLIP
    };

    const DINOV3: Self = Self {
        mean: IMAGENET_MEAN,
        deviation: IMAGENET_DEVIATION,
        ..Self::VIT
    };

    const OWL: Self = Self {
        target: Target::Exact {
            width: 768,
            height: 768,
        },
        filter: Filter::Bicubic,
        mean: CLIP_MEAN,
        deviation: CLIP_DEVIATION,
        ..Self::VIT
    };

    const OWL2: Self = Self {
        target: Target::Exact {
            width: 960,
            height: 960,
        },
        ..Self::OWL
    };

    const SAM: Self = Self {
        target: Target::LongestNearest(1024),
        ..Self::DINOV3
    };

    const SAM2: Self = Self {
        target: Target::Exact {
            width: 1024,
            height: 1024,
        },
        ..Self::DINOV3
    };

    const DPT: Self = Self {
        target: Target::Exact {
            width: 384,
            height: 384,
        },
        ..Self::SIGLIP
    };

    const DETR: Self = Self {
        target: Target::ShortestWithin(800, 1333),
        square: false,
        mean: IMAGENET_MEAN,
        deviation: IMAGENET_DEVIATION,
        ..Self::VIT
    };

    const PP_DOCLAYOUT: Self = Self {
        target: Target::Exact {
            width: 800,
            height: 800,
        },
        filter: Filter::Bicubic,
        mean: [0.0; CHANNELS],
        deviation: [1.0; CHANNELS],
        ..Self::VIT
    };

    const RT_DETR: Self = Self {
        target: Target::Exact {
            width: 640,
            height: 640,
        },
        normalizes: false,
        ..Self::DETR
    };

    const SEGFORMER: Self = Self {
        target: Target::Exact {
            width: 512,
            height: 512,
        },
        mean: IMAGENET_MEAN,
        deviation: IMAGENET_DEVIATION,
        ..Self::VIT
    };

    const CONVNEXT: Self = Self {
        target: Target::Shortest(384),
        square: false,
        filter: Filter::Bicubic,
        ..Self::VIT
    };

    const QWEN: Self = Self {
        target: Target::Pixels {
            factor: 28,
            least: 56 * 56,
            most: 28 * 28 * 1280,
        },
        crop: None,
        ..Self::CLIP
    };

    const IDEFICS: Self = Self {
        target: Target::Longest(4 * 364),
        filter: Filter::Lanczos,
        ..Self::VIT
    };

    const LLAVA_NEXT: Self = Self {
        target: Target::Shortest(336),
        crop: Some(336),
        ..Self::CLIP
    };

    const LLAVA_ONEVISION: Self = Self {
        target: Target::Exact {
            width: 384,
            height: 384,
        },
        crop: None,
        ..Self::CLIP
    };

    const PIXTRAL: Self = Self {
        target: Target::WholePatches {
            longest: 1024,
            patch: 16,
        },
        crop: None,
        ..Self::CLIP
    };

    const JANUS: Self = Self {
        target: Target::LongestFrom {
            longest: 384,
            least: 14,
        },
        crop: None,
        ..Self::CLIP
    };

    const GOT_OCR2: Self = Self {
        target: Target::Exact {
            width: 384,
            height: 384,
        },
        square: true,
        crop: None,
        ..Self::CLIP
    };

    const COMMAND: Self = Self {
        target: Target::Exact {
            width: 512,
            height: 512,
        },
        ..Self::GOT_OCR2
    };

    const LLAMA4: Self = Self {
        target: Target::Exact {
            width: 336,
            height: 336,
        },
        ..Self::VIT
    };

    const GEMMA4: Self = Self {
        filter: Filter::Bicubic,
        mean: [0.0; CHANNELS],
        deviation: [1.0; CHANNELS],
        normalizes: false,
        ..Self::VIT
    };

    /// Numbers stay bytes, or are those of each picture.
    const PIX2STRUCT: Self = Self {
        mean: [0.0; CHANNELS],
        deviation: [1.0; CHANNELS],
        ..Self::VIT
    };

    const DONUT: Self = Self {
        target: Target::Exact {
            width: 1920,
            height: 2560,
        },
        ..Self::VIT
    };

    const NOUGAT: Self = Self {
        target: Target::Exact {
            width: 672,
            height: 896,
        },
        mean: IMAGENET_MEAN,
        deviation: IMAGENET_DEVIATION,
        ..Self::VIT
    };

    pub fn of(kind: &str) -> Option<Self> {
        Some(match kind {
            "CLIP" | "Bit" | "Llava" => Self::CLIP,
            "LlavaOnevision" => Self::LLAVA_ONEVISION,
            "LlavaNext" => Self::LLAVA_NEXT,
            "MiniCPMV4_6" => Self::SIGLIP,
            "ViT" | "Siglip2" | "Gemma3" | "Idefics2" | "Lfm2Vl" => Self::VIT,
            "Gemma4" => Self::GEMMA4,
            "Pix2Struct" => Self::PIX2STRUCT,
            "Cohere2Vision" => Self::COMMAND,
            "Llama4" => Self::LLAMA4,
            "Siglip" | "Beit" => Self::SIGLIP,
            "MobileNetV1" | "MobileNetV2" => Self::MOBILENET,
            "EfficientNet" => Self::EFFICIENTNET,
            "DINOv3ViT" => Self::DINOV3,
            "DPT" => Self::DPT,
            "Sam" => Self::SAM,
            "OwlViT" => Self::OWL,
            "Owlv2" => Self::OWL2,
            "Idefics3" | "SmolVLM" => Self::IDEFICS,
            "Qwen2VL" | "Qwen2_5_VL" | "PaddleOCRVL" | "Glm4v" | "Glm46V" => Self::QWEN,
            "DeiT" => Self::DEIT,
            "Detr" | "ConditionalDetr" | "DeformableDetr" | "GroundingDino" | "Yolos"
            | "MaskFormer" | "Mask2Former" => Self::DETR,
            "RTDetr" => Self::RT_DETR,
            "PPDocLayoutV2" | "PPDocLayoutV3" | "PPDocLayoutV4" => Self::PP_DOCLAYOUT,
            "Sam2" => Self::SAM2,
            "Segformer" => Self::SEGFORMER,
            "ConvNext" => Self::CONVNEXT,
            "Donut" => Self::DONUT,
            "Nougat" => Self::NOUGAT,
            "Pixtral" => Self::PIXTRAL,
            "GotOcr2" | "Ovis2" => Self::GOT_OCR2,
            "Janus" | "DeepseekVL" => Self::JANUS,
            _ => return None,
        })
    }
}
