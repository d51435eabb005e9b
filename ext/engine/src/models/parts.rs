//! The parts of a model that hold tensors, and what checkpoints call them.

/// One line per part: its variant of `Part`, its field of `Names`, and whether it stands in every
/// layer or once in the model.
macro_rules! parts {
    ($($(#[$doc:meta])* $part:ident $field:ident $scope:ident;)*) => {
        /// A module of a model.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Part {
            $($(#[$doc])* $part,)*
        }

        /// The modules of a family by part. A name that is empty stands for a part that the family does
        /// not have; `|` separates the names that checkpoints of one family differ in, of which the first
        /// that exists counts. Names of layers' parts follow `layer`; `#` stands in them for its number once more.
        #[derive(Clone, Copy, Debug)]
        pub struct Names {
            /// What transformers puts before the names of the bare model where a head stands beside it.
            pub body: &'static str,
            /// The beginning of a layer's names; `{}` stands for its number.
            pub layer: &'static str,
            /// How many layers share a number; `[]` stands in the names of layers and their parts for a layer's
            /// place among them (LongCat, ALBERT).
            pub sublayers: usize,
            /// The same of the high one of two stacks.
            pub high_layer: &'static str,
            /// The number of the first layer, and of the first of the high stack.
            pub first_layer: usize,
            pub first_high_layer: usize,
            /// Linear weights are stored `[in, out]` (GPT-2).
            pub transposed: bool,
            $(pub $field: &'static str,)*
        }

        impl Names {
            pub const NONE: Self = Self {
                body: "",
                layer: "",
                sublayers: 1,
                high_layer: "",
                first_layer: 0,
                first_high_layer: 0,
                transposed: false,
                $($field: "",)*
            };

            fn of(&self, part: Part) -> &'static str {
                match part {
                    $(Part::$part => self.$field,)*
                }
            }
        }

        impl Part {
            pub const ALL: &'static [Self] = &[$(Self::$part,)*];

            fn scope(self) -> Scope {
                match self {
                    $(Self::$part => Scope::$scope,)*
                }
            }
        }
    };
}

parts! {
    TokenEmbedding token_embedding Model;
    /// What makes a token of a patch of an image.
    PatchEmbedding patch_embedding Model;
    /// The same of a second frame, where frames are stored apart.
    SecondPatchEmbedding second_patch_embedding Model;
    ClassToken class_token Model;
    /// Behind the class token, with a position of its own (DeiT).
    SecondToken second_token Model;
    RegisterTokens register_tokens Model;
    /// Tokens that each find a thing in a picture, and positions that are added behind layers (YOLOS).
    FinderTokens finder_tokens Model;
    LaterPositions later_positions Model;
    PositionEmbedding position_embedding Model;
    TokenTypes token_types Model;
    /// Tables of which every token has the first row: its task (ERNIE), and the box around it (LayoutLM).
    TaskTypes task_types Model;
    BoxColumns box_columns Model;
    BoxRows box_rows Model;
    BoxHeights box_heights Model;
    BoxWidths box_widths Model;
    /// Frequencies of rotary positions (ESM), and their sines beside their cosines (RoFormer), where files have them.
    RopeFrequencies rope_frequencies Model;
    RopeTable rope_table Model;
    EmbeddingNorm embedding_norm Model;
    EmbeddingProjection embedding_projection Model;
    /// Where the state of the low one of two stacks starts (HRM).
    LowStart low_start Model;
    FinalNorm final_norm Model;
    /// What makes logits of hidden states.
    Head head Model;
    /// What stands before it.
    HeadDense head_dense Model;
    HeadNorm head_norm Model;
    /// Added to the logits (BART).
    LogitBias logit_bias Model;
    RelativeTable relative_table Model;
    RelativeNorm relative_norm Model;
    Convolution convolution Model;
    /// Convolutions over samples, and the norms after them; `{}` stands for the number (wav2vec 2.0).
    StemConvolution stem_convolution Model;
    StemNorm stem_norm Model;
    /// What leads from there to the encoder's states.
    FeatureNorm feature_norm Model;
    FeatureProjection feature_projection Model;
    /// A convolution that stands for positions: its weight, or lengths and directions of that.
    PositionConvolution position_convolution Model;
    PositionGain position_gain Model;
    PositionDirection position_direction Model;
    ConvolutionNorm convolution_norm Model;
    /// What layers read beside the residual stream (Gemma 3n and 4), and what it becomes in each.
    LayerInputTable layer_input_table Model;
    LayerInputProjection layer_input_projection Model;
    LayerInputNorm layer_input_norm Model;
    LayerInputGate layer_input_gate Layer;
    LayerInputOutput layer_input_output Layer;
    PostLayerInputNorm post_layer_input_norm Layer;
    /// Lead from one residual stream to the others and back; `{}` stands for the number (Gemma 3n).
    LaneInto lane_into Model;
    LaneOut lane_out Model;
    LaneRouter lane_router Layer;
    LaneRouterNorm lane_router_norm Layer;
    LanePrediction lane_prediction Layer;
    LaneCorrection lane_correction Layer;
    LaneScale lane_scale Layer;
    /// A narrow way beside attention (Gemma 3n).
    NarrowDown narrow_down Layer;
    NarrowUp narrow_up Layer;
    NarrowNorm narrow_norm Layer;
    /// Factor on the residual stream (Gemma 4).
    LayerScale layer_scale Layer;
    AttentionNorm attention_norm Layer;
    /// Of the gates behind norms (A.X K2).
    AttentionNormDown attention_norm_down Layer;
    AttentionNormUp attention_norm_up Layer;
    MlpNormDown mlp_norm_down Layer;
    MlpNormUp mlp_norm_up Layer;
    /// Of the layer's input and the normalized attention once more (Jina code).
    SecondAttentionNorm second_attention_norm Layer;
    PostAttentionNorm post_attention_norm Layer;
    MlpNorm mlp_norm Layer;
    PostMlpNorm post_mlp_norm Layer;
    /// Query, key and value in one matrix.
    Qkv qkv Layer;
    /// The gate of attention's result, query, key and value in one matrix (HRM).
    GateQkv gate_qkv Layer;
    Query query Layer;
    /// For each head its query and the gate of its result (Qwen 3 Next).
    QueryGate query_gate Layer;
    Key key Layer;
    Value value Layer;
    /// Biases that stand beside a fused matrix which has none.
    QueryBias query_bias Layer;
    ValueBias value_bias Layer;
    /// The two matrices of queries that pass a shorter row, which is normalized (DeepSeek).
    QueryDown query_down Layer;
    QueryDownNorm query_down_norm Layer;
    QueryUp query_up Layer;
    /// What makes a latent of a token, and keys and values of that.
    LatentDown latent_down Layer;
    LatentNorm latent_norm Layer;
    LatentUp latent_up Layer;
    /// The same apart, for each head: `[heads, rank, plain]` and `[heads, value size, rank]` (GGUF).
    LatentKeys latent_keys Layer;
    LatentValues latent_values Layer;
    /// What chooses the keys of a sparse attention.
    IndexQuery index_query Layer;
    IndexKey index_key Layer;
    IndexKeyNorm index_key_norm Layer;
    IndexWeights index_weights Layer;
    QueryNorm query_norm Layer;
    KeyNorm key_norm Layer;
    /// One more score per head (gpt-oss).
    Sinks sinks Layer;
    /// What attention gives is multiplied by its sigmoid (AFMoE).
    OutputGate output_gate Layer;
    OutputGateBias output_gate_bias Layer;
    /// What the residual stream is multiplied by (Doge).
    AttentionResidual attention_residual Layer;
    MlpResidual mlp_residual Layer;
    /// Experts that make queries, and lead back from attention (JetMoE).
    QueryRouter query_router Layer;
    QueryExpertsIn query_experts_in Layer;
    QueryExpertsOut query_experts_out Layer;
    /// How much the second half of differential attention counts (DiffLlama).
    FirstLambdaQuery first_lambda_query Layer;
    FirstLambdaKey first_lambda_key Layer;
    SecondLambdaQuery second_lambda_query Layer;
    SecondLambdaKey second_lambda_key Layer;
    AttentionSubNorm attention_sub_norm Layer;
    MlpSubNorm mlp_sub_norm Layer;
    XieluPositive xielu_positive Layer;
    XieluNegative xielu_negative Layer;
    XieluLinear xielu_linear Layer;
    XieluMost xielu_most Layer;
    /// What is added to attention's output where its matrix has no bias (GPT-NeoX Japanese).
    AttentionOutputBias attention_output_bias Layer;
    /// What makes queries, keys and values where a token sees all others (Longformer).
    GlobalQuery global_query Layer;
    GlobalKey global_key Layer;
    GlobalValue global_value Layer;
    /// A convolution over values beside attention (Nyströmformer).
    ValueConvolution value_convolution Layer;
    /// Convolutions whose kernels each token makes: of keys, in two steps, the kernels, and what they are over
    /// (ConvBERT).
    KeyDepthwise key_depthwise Layer;
    KeyPointwise key_pointwise Layer;
    KeyConvolutionBias key_convolution_bias Layer;
    KernelMaker kernel_maker Layer;
    ConvolvedValue convolved_value Layer;
    /// Into the narrower rows of a layer, into those of queries and keys, and out again (MobileBERT).
    NarrowInput narrow_input Layer;
    NarrowInputNorm narrow_input_norm Layer;
    NarrowShared narrow_shared Layer;
    NarrowSharedNorm narrow_shared_norm Layer;
    NarrowOutput narrow_output Layer;
    NarrowOutputNorm narrow_output_norm Layer;
    /// MLPs before the last one of a layer; `{}` stands for the number (MobileBERT).
    EarlierUp earlier_up Layer;
    EarlierDown earlier_down Layer;
    EarlierNorm earlier_norm Layer;
    /// Of the adapter of a language behind the MLP; `<>` stands for the language (X-MOD).
    AdapterNorm adapter_norm Layer;
    AdapterDown adapter_down Layer;
    AdapterUp adapter_up Layer;
    PositionQuery position_query Layer;
    PositionKey position_key Layer;
    /// What weighs the bias of distances (WavLM).
    PositionGate position_gate Layer;
    PositionGateFactor position_gate_factor Layer;
    /// A row for every distance (wav2vec2-bert), and what queries of content and of positions gain (Parakeet).
    PositionTable position_table Layer;
    ContentBias content_bias Layer;
    PositionBias position_bias Layer;
    /// Of a Conformer: the MLP before attention, and the convolution behind it.
    FirstMlpNorm first_mlp_norm Layer;
    FirstUp first_up Layer;
    FirstDown first_down Layer;
    ConvolutionInputNorm convolution_input_norm Layer;
    PointwiseIn pointwise_in Layer;
    Depthwise depthwise Layer;
    DepthwiseNorm depthwise_norm Layer;
    DepthwiseMean depthwise_mean Layer;
    DepthwiseVariance depthwise_variance Layer;
    PointwiseOut pointwise_out Layer;
    AttentionOutput attention_output Layer;
    /// What goes into and out of a layer that keeps a state, and its convolution.
    StateInput state_input Layer;
    StateOutput state_output Layer;
    StateConvolution state_convolution Layer;
    /// How fast states decay, and what is added to time steps.
    StateDecay state_decay Layer;
    /// The same ready for use, negative and in powers of e (GGUF).
    StateRates state_rates Layer;
    StateStepBias state_step_bias Layer;
    StateNorm state_norm Layer;
    /// Queries, keys and values of such a layer, in one matrix, with the gate of what is read, or apart.
    StateQkv state_qkv Layer;
    StateQkvGate state_qkv_gate Layer;
    StateQuery state_query Layer;
    StateKey state_key Layer;
    StateValue state_value Layer;
    StateQueryConvolution state_query_convolution Layer;
    StateKeyConvolution state_key_convolution Layer;
    StateValueConvolution state_value_convolution Layer;
    /// What is read of a state is multiplied by a function of it; in one matrix or in two.
    StateGate state_gate Layer;
    StateGateDown state_gate_down Layer;
    StateGateUp state_gate_up Layer;
    /// How much of a state remains, in one matrix or in two.
    StateFading state_fading Layer;
    StateFadingDown state_fading_down Layer;
    StateFadingUp state_fading_up Layer;
    StateFadingBias state_fading_bias Layer;
    /// How much of a value is written, alone or with what a state fades by in one matrix (Qwen 3 Next).
    StateWritten state_written Layer;
    StateWrittenFading state_written_fading Layer;
    /// How much of an input is written (RecurrentGemma).
    StateInputGate state_input_gate Layer;
    StateInputGateBias state_input_gate_bias Layer;
    /// How much a token counts beside the one before it (RWKV).
    StateKeyMix state_key_mix Layer;
    StateValueMix state_value_mix Layer;
    StateGateMix state_gate_mix Layer;
    StateQueryMix state_query_mix Layer;
    StateFadingMix state_fading_mix Layer;
    /// The same of all that a layer makes of them in one tensor, and what RWKV 6 makes shares of and adds to them.
    StateMixes state_mixes Layer;
    StateFirstMix state_first_mix Layer;
    StateMixDown state_mix_down Layer;
    StateMixUp state_mix_up Layer;
    /// How much of what a key holds is replaced, how much the values of the first layer count, and factors (RWKV 7).
    StateRateBias state_rate_bias Layer;
    StateRateDown state_rate_down Layer;
    StateRateUp state_rate_up Layer;
    StateFirstBias state_first_bias Layer;
    StateFirstDown state_first_down Layer;
    StateFirstUp state_first_up Layer;
    StateKeyScale state_key_scale Layer;
    StateRateScale state_rate_scale Layer;
    UpMix up_mix Layer;
    GateMix gate_mix Layer;
    /// What passes by a state (Mamba).
    StateSkip state_skip Layer;
    /// What makes time steps, in two matrices, and input and output of a state; and norms of these (Mamba).
    StateSelection state_selection Layer;
    StateSteps state_steps Layer;
    StateStepNorm state_step_norm Layer;
    StateIntoNorm state_into_norm Layer;
    StateFromNorm state_from_norm Layer;
    /// Of a block that layers share: the norm of what it reads, what leads from it into the layer, and what a layer
    /// adds to its matrices; `{}` stands for the layer's number among those that have a block (Zamba 2).
    BlockNorm block_norm Layer;
    BlockOutput block_output Layer;
    QueryUpdateDown query_update_down Layer;
    QueryUpdateUp query_update_up Layer;
    KeyUpdateDown key_update_down Layer;
    KeyUpdateUp key_update_up Layer;
    ValueUpdateDown value_update_down Layer;
    ValueUpdateUp value_update_up Layer;
    GateUpUpdateDown gate_up_update_down Layer;
    GateUpUpdateUp gate_up_update_up Layer;
    /// Of a decoder's attention to what an encoder made.
    CrossNorm cross_norm Layer;
    CrossQuery cross_query Layer;
    CrossKey cross_key Layer;
    CrossValue cross_value Layer;
    CrossOutput cross_output Layer;
    /// Factors of what attention and the MLP add (DINOv2).
    AttentionScale attention_scale Layer;
    MlpScale mlp_scale Layer;
    Gate gate Layer;
    Up up Layer;
    /// Gate and up in one matrix, gate first.
    GateUp gate_up Layer;
    /// Gate and up in one matrix, up first.
    UpGate up_gate Layer;
    Down down Layer;
    Router router Layer;
    /// `{}` stands for the expert's number, where experts are stored apart.
    ExpertGate expert_gate Layer;
    ExpertUp expert_up Layer;
    ExpertDown expert_down Layer;
    /// Gates and ups of all experts in one tensor, and biases beside it.
    ExpertGateUp expert_gate_up Layer;
    ExpertGateUpBias expert_gate_up_bias Layer;
    ExpertDownBias expert_down_bias Layer;
    RouterBias router_bias Layer;
    /// Added to what all experts give (JetMoE).
    ExpertTotalBias expert_total_bias Layer;
    /// Of experts beside an MLP (Gemma 4): what their router, they themselves and both are normalized by.
    RouterNorm router_norm Layer;
    ExpertInputNorm expert_input_norm Layer;
    ExpertOutputNorm expert_output_norm Layer;
    BesideExpertsNorm beside_experts_norm Layer;
    ExpertScales expert_scales Layer;
    /// Lead to and from the narrower rows that experts read (Nemotron H).
    ExpertLatentDown expert_latent_down Layer;
    ExpertLatentUp expert_latent_up Layer;
    SharedGate shared_gate Layer;
    SharedUp shared_up Layer;
    SharedDown shared_down Layer;
    SharedGateUp shared_gate_up Layer;
    SharedRouter shared_router Layer;
    /// How much the states of each layer count for a classifier (wav2vec 2.0).
    LayerWeights layer_weights Model;
    SequenceDense sequence_dense Model;
    SequenceNorm sequence_norm Model;
    SequenceOutput sequence_output Model;
    TokenDense token_dense Model;
    TokenNorm token_norm Model;
    TokenOutput token_output Model;
    MaskedDense masked_dense Model;
    MaskedNorm masked_norm Model;
    MaskedOutput masked_output Model;
    MaskedBias masked_bias Model;
    /// A second dense layer (UltraBERT), and columns of the output matrix beside the token embedding (MobileBERT).
    MaskedSecond masked_second Model;
    MaskedRest masked_rest Model;
    /// Where an answer starts and ends.
    QuestionDense question_dense Model;
    QuestionNorm question_norm Model;
    QuestionOutput question_output Model;
    /// A second dense layer behind the first, which the head's input is added to (BigBird).
    QuestionSecond question_second Model;
    /// Leads pooled states into the space that texts and images share.
    SharedSpace shared_space Model;
    /// What makes a score of the cosine of a text and an image.
    MatchScale match_scale Model;
    MatchBias match_bias Model;
    /// The query that pools an image by attention (SigLIP), and what stands around it.
    /// Of patches before their positions (GLM-4V).
    PatchNorm patch_norm Model;
    PoolingQuery pooling_query Model;
    PoolingQkv pooling_qkv Model;
    PoolingQkvBias pooling_qkv_bias Model;
    PoolingOutput pooling_output Model;
    PoolingNorm pooling_norm Model;
    PoolingUp pooling_up Model;
    PoolingDown pooling_down Model;
    /// Lead from a vision tower into a decoder.
    ProjectorNorm projector_norm Model;
    ProjectorUp projector_up Model;
    ProjectorGate projector_gate Model;
    ProjectorDown projector_down Model;
    /// A third product (Llama 4).
    ProjectorOutput projector_output Model;
    /// What leads the patches of a block back to the width of one (Mistral 3).
    ProjectorMerge projector_merge Model;
    /// Behind that a product and its norm (GLM-4V).
    ProjectorInner projector_inner Model;
    ProjectorInnerNorm projector_inner_norm Model;
    /// The same of layers before the last one; `{}` stands for their number among those (Qwen3-VL).
    DeepNorm deep_norm Model;
    DeepUp deep_up Model;
    DeepDown deep_down Model;
    /// Stands after each line of an image's rows (LLaVA-NeXT).
    ImageNewline image_newline Model;
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Model,
    Layer,
}

/// A part of a certain layer, and of a certain expert in it.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub part: Part,
    pub layer: usize,
    pub expert: usize,
}

impl Part {
    pub fn at(self, layer: usize) -> Place {
        Place {
            part: self,
            layer,
            expert: 0,
        }
    }
}

impl From<Part> for Place {
    fn from(part: Part) -> Self {
        part.at(0)
    }
}

impl Place {
    pub fn expert(self, expert: usize) -> Self {
        Self { expert, ..self }
    }
}

impl Names {
    /// What a place may be called, the likeliest first.
    pub fn modules(&self, place: impl Into<Place>) -> Vec<String> {
        let place = place.into();
        let expert = place.expert.to_string();
        let sublayer = (place.layer % self.sublayers).to_string();
        let names = alternatives(self.of(place.part));
        let names = names.map(|name| name.replace("{}", &expert).replace("[]", &sublayer));
        if place.part.scope() == Scope::Model {
            return names.collect();
        }
        let (layers, number) = (self.layers(place.layer), place.layer.to_string());
        names
            .map(|name| name.replace('#', &number))
            .flat_map(|name| layers.iter().map(move |layer| format!("{layer}{name}")))
            .collect()
    }

    /// What a part may be called, with `{}` for the number of its layer and `*` for that of an expert.
    pub fn templates(&self, part: Part) -> Vec<String> {
        let names = alternatives(self.of(part));
        let names = names.map(|name| name.replace("{}", "*").replace('#', "{}"));
        if part.scope() == Scope::Model {
            return names.collect();
        }
        names
            .flat_map(|name| {
                // Where only one layer has a number, it is the first of that number.
                let layers = alternatives(self.layer).map(|layer| match self.sublayers {
                    1 => layer.replace("[]", "0"),
                    _ => layer.to_owned(),
                });
                layers.map(move |layer| format!("{layer}{name}"))
            })
            .collect()
    }

    /// What the names of a layer's parts may begin with.
    pub fn layers(&self, layer: usize) -> Vec<String> {
        let sublayer = (layer % self.sublayers).to_string();
        let layer = (layer / self.sublayers + self.first_layer).to_string();
        alternatives(self.layer)
            .map(|name| name.replace("{}", &layer).replace("[]", &sublayer))
            .collect()
    }

    /// These names, in a model that transformers keeps under this one.
    pub const fn within(self, body: &'static str) -> Self {
        Self { body, ..self }
    }

    /// These names, of the high one of two stacks.
    pub const fn of_high_stack(self) -> Self {
        Self {
            layer: self.high_layer,
            first_layer: self.first_high_layer,
            ..self
        }
    }

    /// Whether every residual stream has matrices of its own.
    pub fn separates_lanes(&self) -> bool {
        self.lane_into.contains("{}")
    }

    /// Whether every layer has a table of distances of its own.
    pub fn separates_relative_tables(&self) -> bool {
        self.relative_table.contains("{}")
    }

    /// Whether every expert has tensors of its own.
    pub fn separates_experts(&self) -> bool {
        self.expert_gate.contains("{}")
    }
}

fn alternatives(names: &'static str) -> impl Iterator<Item = &'static str> {
    names.split('|').filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: Names = Names {
        layer: "layer.{}.|blocks.{}.",
        query: "attention.query|attention.q",
        expert_up: "experts.{}.up",
        final_norm: "norm",
        ..Names::NONE
    };

    #[test]
    fn names_are_inherited_and_may_have_alternatives() {
        let child = Names {
            final_norm: "ln_f",
            ..PARENT
        };
        assert_eq!(child.modules(Part::FinalNorm), ["ln_f"]);
        assert_eq!(
            child.modules(Part::Query.at(3)),
            [
                "layer.3.attention.query",
                "blocks.3.attention.query",
                "layer.3.attention.q",
                "blocks.3.attention.q"
            ]
        );
        let halves = Names {
            sublayers: 2,
            query: "attention.[].query",
            ..child
        };
        assert_eq!(
            halves.modules(Part::Query.at(5))[0],
            "layer.2.attention.1.query"
        );
        let expert = child.modules(Part::ExpertUp.at(1).expert(7));
        assert_eq!(expert[0], "layer.1.experts.7.up");
        assert!(child.modules(Part::Key.at(0)).is_empty());
    }
}
