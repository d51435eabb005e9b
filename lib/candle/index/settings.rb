# frozen_string_literal: true

module Candle
  class Index
    # What an index was made with.
    #
    # @api private
    class Settings
      # The variants of BM25, by the names that the engine knows.
      METHODS = { lucene: "lucene", okapi: "robertson", robertson: "robertson", atire: "atire", bm25l: "bm25l",
                  "bm25+": "bm25+" }.freeze
      # The parameters of bm25s.
      USUAL = { method: :lucene, k1: 1.5, b: 0.75, delta: 0.5, stopwords: :english }.freeze
      private_constant :METHODS, :USUAL

      # @return [EmbeddingModel, nil]
      attr_reader :model
      # @return [SparseEmbeddingModel, nil]
      attr_reader :sparse_model
      # @return [LateInteractionModel, nil]
      attr_reader :late_model
      # @return [TextSplitter, nil]
      attr_reader :splitter
      # @return [Boolean]
      attr_reader :late_chunking, :deduplicate
      # @return [Hash] `method k1 b delta stopwords`, as JSON holds it
      attr_reader :bm25

      # @return [Settings] of what {Index.new} was given
      # @raise [ArgumentError] for what is none of it
      def self.read(model: nil, sparse_model: nil, splitter: nil, late_chunking: false, deduplicate: false, bm25: {})
        given = loaded(model, "model", EmbeddingModel, SparseEmbeddingModel, LateInteractionModel)
        sparse = loaded(sparse_model, "sparse_model", SparseEmbeddingModel)
        dense = given if EmbeddingModel === given
        late = given if LateInteractionModel === given
        sparse ||= given if SparseEmbeddingModel === given
        cut = [splitter_of(splitter), late_chunking ? true : false]
        raise ArgumentError, "late_chunking needs a splitter and a model" if cut.last && !(cut.first && dense)

        new([dense, sparse, late], cut, deduplicate ? true : false, scoring(bm25))
      end

      # @return [EmbeddingModel, SparseEmbeddingModel, LateInteractionModel, nil]
      def self.loaded(given, name, *classes)
        case given
        when nil, *classes then return given
        when String then nil
        else
          unless Arguments.answers?(given, :to_path)
            raise ArgumentError, "#{name} must be a model or the source of one, not #{Arguments.shown(given)}"
          end
        end
        kind = classes.size > 1 ? ModelKind.class_for(ModelKind.of(given)) : classes.first
        (classes.include?(kind) ? kind : classes.first).from_pretrained(given)
      end

      # @return [TextSplitter, nil]
      def self.splitter_of(given)
        return given if NilClass === given || TextSplitter === given

        raise ArgumentError, "splitter must be a TextSplitter, not #{Arguments.shown(given)}"
      end

      # @return [Hash] parameters of BM25 with the usual ones
      def self.scoring(given)
        raise ArgumentError, "bm25 must be a Hash, not #{Arguments.shown(given)}" unless Hash === given

        given = given.transform_keys { |name| Arguments.label(name, "bm25").to_sym }
        Hints.refuse(given.except(*USUAL.keys), USUAL.keys) unless (given.keys - USUAL.keys).empty?
        given = USUAL.merge(given)
        numbers = %i[k1 b delta].to_h { |name| [name, Arguments.float(given[name], name.to_s)] }
        numbers.merge(method: METHODS.fetch(Arguments.choice(given[:method], "method", METHODS.keys)),
                      stopwords: ignored(given[:stopwords]))
      end

      # @return [String, Array<String>, nil]
      def self.ignored(words)
        case words
        when nil then nil
        when Array then TextInput.utf8_all(words, "stopwords")
        else Arguments.choice(words, "stopwords", %i[english]).to_s
        end
      end
      private_class_method :loaded, :splitter_of, :scoring, :ignored, :new

      def initialize(models, cut, deduplicate, bm25)
        @model, @sparse_model, @late_model = models
        @splitter, @late_chunking = cut
        @deduplicate = deduplicate
        @bm25 = bm25
      end

      # @return [Boolean] whether there is a model for texts
      def models?
        [model, sparse_model, late_model].any?
      end

      # @param bm25 [Hash]
      # @return [Settings] the same with other parameters of BM25
      def with_bm25(bm25)
        dup.tap { |copy| copy.replace_bm25(bm25) }
      end

      protected

      def replace_bm25(bm25)
        @bm25 = bm25
      end
    end
  end
end
