# frozen_string_literal: true

module Candle
  class CLI
    # `red-candle embed`, `classify` and `entities`: a result for each text or image, in the order of them.
    #
    # @api private
    class Batch < Verb
      # Texts that are computed together.
      SLICE = 64
      # Models of images that do the same as a kind of models of texts.
      IMAGE_KINDS = { embedding: %i[clip image_embedding], classifier: %i[clip image_classifier], ner: [] }.freeze
      private_constant :SLICE, :IMAGE_KINDS

      # @param options [Hash]
      # @param task [Symbol] the kind of model of texts
      def initialize(options, task)
        super(options)
        @task = task
      end

      # @param files [Array<String>]
      # @return [void]
      def call(files)
        check_format
        Records.check(files)
        @kind = kind_of(options[:model], @task, *IMAGE_KINDS.fetch(@task))
        @model = load_model(@kind, options[:model])
        records = Records.new(files, field: options[:field], images: images?)
        writer = Writer.new(options[:output], format: options[:format], record_bytes: record_bytes)
        Terminal.note("#{writer.done} are done already") if writer.done.positive?
        work(records.lazy.drop(writer.done), writer, files)
      ensure
        writer&.close
      end

      private

      # JSON lines are what is written without any option.
      def check_format
        return unless options[:json] && options[:format] != "jsonl"

        raise ArgumentError, "--json and --format #{options[:format]} are different formats: pass one of them"
      end

      def record_bytes
        (options[:dimensions] || @model.dimension) * 4 if options[:format] == "packed"
      end

      def images?
        @kind != @task
      end

      def work(records, writer, files)
        total = options[:output] && files.any? ? Records.new(files, images: images?).count : nil
        progress = Progress.for(true)
        records.each_slice(SLICE) do |slice|
          slice.zip(results(slice)) { |given, result| writer.write(given, result) }
          progress&.call(writer.done, total || writer.done)
        end
      end

      def results(slice)
        case @task
        when :embedding then vectors(slice)
        when :classifier then labels(slice).map { |labels| { labels: labels } }
        else
          given = { confidence_threshold: options[:threshold], aggregation: options[:aggregation] }
          @model.extract_entities(slice, **given).map { |found| { entities: found } }
        end
      end

      def vectors(slice)
        form = options[:format] == "packed" ? :packed : :array
        given = { dimensions: options[:dimensions], prompt_name: options[:prompt_name] }.compact
        refuse(given.keys) if images?
        found = images? ? image_results(slice, form) : @model.embed(slice, as: form, **given)
        form == :packed ? found : found.map { |vector| { embedding: vector } }
      end

      def image_results(slice, form)
        return @model.embed(images_of(slice), as: form) if @kind == :image_embedding

        texts, images = slice.partition { |given| given.is_a?(String) }
        vectors = @model.embed_text(texts, as: form)
        looks = @model.embed_image(images, as: form)
        slice.map { |given| given.is_a?(String) ? vectors.shift : looks.shift }
      end

      def labels(slice)
        refuse(%i[labels]) if options[:labels] && @kind != :clip
        case @kind
        when :image_classifier then @model.classify(images_of(slice), top_k: options[:top])
        when :clip then clip_labels(images_of(slice))
        else @model.classify(slice, top_k: options[:top])
        end
      end

      def clip_labels(images)
        raise ArgumentError, "CLIP needs --labels, as in --labels dog flower" unless options[:labels]

        found = @model.classify_image(images, options[:labels])
        options[:top] ? found.map { |list| list.first(options[:top]) } : found
      end

      def images_of(slice)
        text = slice.find { |given| given.is_a?(String) } or return slice
        raise Error, "this model reads images, and #{text[0, 40].inspect} is not the path of one"
      end

      def refuse(names)
        return if names.empty?

        raise ArgumentError, "--#{names.first.to_s.tr("_", "-")} is not for models of the kind #{@kind}"
      end
    end
  end
end
