# frozen_string_literal: true

module Candle
  class Server
    # What the dialects share: finding the model, taking a place, computing, and writing the answer.
    #
    # @api private
    class API
      # What all of them work with.
      Services = Struct.new(:models, :limits, :gate, :metrics, :storage, :adapters, keyword_init: true)
      # The kinds of models that write texts.
      WRITERS = %i[llm vlm seq2seq].freeze
      # What the id of a token may be; models know fewer.
      TOKENS = (0...(2**32))
      # What fields of {GenerationConfig} may be; others are numbers.
      SAMPLING = { max_length: [Integer], top_k: [Integer], seed: [Integer], repetition_penalty_last_n: [Integer],
                   stop_sequences: [String, ->(value) { value.is_a?(Array) && value.all?(String) }] }.freeze
      private_constant :WRITERS, :TOKENS, :SAMPLING

      # @param services [Services]
      def initialize(services)
        @services = services
      end

      # @param problem [Problem]
      # @return [Hash] how this dialect tells of a problem
      def error(problem)
        { error: problem.message, code: problem.code }
      end

      # @param problem [Problem]
      # @return [Integer] the status that this dialect gives it
      def status(problem)
        problem.status
      end

      private

      attr_reader :services

      def models
        services.models
      end

      def limits
        services.limits
      end

      def invalid(message, param: nil)
        Problem.new(400, "invalid_request", message, param: param)
      end

      # An answer to be made of a prompt or of messages.
      #
      # @param options [Hash] fields of {GenerationConfig} that the request has
      # @param usual [Hash] those of the dialect for language models where it has none
      # @param fields [Hash] what the request says beside them, see {Rewriting::FIELDS}
      # @param form [Hash] tools and schemas, as {Generation} takes them
      def answer_to(entry, input, options:, usual:, fields:, **form)
        if form[:tools]&.any? && entry.kind != :llm
          raise invalid("the model #{entry.name} is of the kind #{entry.kind}, and takes no tools", param: "tools")
        end

        form[:reasoning] = {} unless entry.kind == :llm
        if entry.kind == :seq2seq
          return Rewriting.new(entry, input, options: options, metrics: services.metrics, fields: fields,
                                             max_tokens: limits.max_tokens, **form.slice(:schema))
        end

        Generation.new(entry, input, options: { max_length: limits.max_tokens, **usual, **options.compact },
                                     metrics: services.metrics, **form)
      end

      # What a request says of reasoning.
      #
      # @return [Hash] as {Generation} takes it
      # @raise [Problem] 400
      def reasoning_of(param, **given)
        given = given.compact
        Reasoning.of(given[:reasoning], **given.slice(:enable_thinking, :reasoning_effort))
        given
      rescue ArgumentError => e
        raise invalid(e.message, param: param)
      end

      # Fields of {GenerationConfig} that a request names in the words of its dialect.
      #
      # @param given [Hash{String => Object}] a part of the request
      # @param names [Hash{String => Symbol}] the dialect's names of the fields
      # @param param [String] where that part stands
      # @return [Hash{Symbol => Object}]
      def sampling_of(given, names, param)
        names.filter_map do |name, field|
          value = given[name]
          next if value.nil?

          unless SAMPLING.fetch(field, [Numeric]).any? { |kind| kind === value } # rubocop:disable Style/CaseEquality
            raise invalid("#{param}.#{name} has the wrong type", param: param)
          end

          [field, value]
        end.to_h
      end

      # How many tokens an answer may have, where a request says it.
      #
      # @param name [String] the dialect's name of the field
      # @return [Integer, nil]
      def answer_length(request, name)
        count = request.field(name, Integer, default: nil)
        return count if count.nil? || count.between?(1, limits.max_tokens)

        raise invalid("#{name} must be from 1 to #{limits.max_tokens}", param: name)
      end

      # Computes while the request's thread watches the client.
      def compute(request, &work)
        services.gate.hold(request.connection, request.deadline) do
          job = Job.new(request.connection, request.deadline) { |_| work.call }
          job.value
        ensure
          job&.cancel
        end
      rescue ArgumentError => e
        raise invalid(e.message)
      end

      # @return [Array] an answer of Rack whose pieces come as the work emits them
      def stream(request, content_type, failure:, &work)
        body = services.gate.pass(request.connection, request.deadline) do |leave|
          job = Job.new(request.connection, request.deadline, &work)
          job.started
          made = Stream.new(job, request.connection, failure: failure, leave: leave)
        ensure
          job&.cancel unless made
        end
        [200, { "content-type" => content_type, "cache-control" => "no-cache", "x-accel-buffering" => "no" }, body]
      end

      def json(value, status: 200, headers: {})
        [status, { "content-type" => "application/json" }.merge(headers), [JSON.generate(value)]]
      end

      # Texts of a request, one or several.
      #
      # @return [Array(Array<String>, Boolean)] the texts, and whether a single one was given
      def texts(value, name)
        single = value.is_a?(String)
        list = single ? [value] : value
        raise invalid("#{name} must be a text or an array of texts", param: name) unless strings?(list)

        check_batch(list, name)
        list.each_with_index do |text, index|
          next if text.size <= limits.characters

          raise invalid("#{name}[#{index}] has #{text.size} characters, and the server takes #{limits.characters}",
                        param: name)
        end
        [list, single]
      end

      # The tokens of one text of a request, or of several.
      #
      # @return [Array<Array<Integer>>]
      def token_lists(value, name)
        lists = value.all?(Integer) ? [value] : value
        unless lists.all? { |ids| ids.is_a?(Array) && ids.any? && ids.all? { |id| token?(id) } }
          raise invalid("#{name} must be a text, an array of texts, or arrays of token ids", param: name)
        end

        check_batch(lists, name)
        lists
      end

      def token?(id)
        id.is_a?(Integer) && TOKENS.cover?(id)
      end

      # Texts and images of a request, for vision-language models.
      #
      # @return [EmbeddingInputs]
      def mixed_inputs(entry, value, name)
        list = value.is_a?(Array) ? value : [value]
        check_batch(list, name)
        inputs = EmbeddingInputs.read(list, name, entry)
        texts(inputs.texts, name) if inputs.texts.any?
        inputs
      end

      def strings?(list)
        list.is_a?(Array) && list.all?(String)
      end

      def check_batch(list, name)
        services.metrics.observe("candle_batch_size", list.size) unless list.empty?
        return if list.size <= limits.batch

        raise Problem.new(413, "batch_too_large",
                          "#{name} has #{list.size} elements, and the server takes #{limits.batch}", param: name)
      end

      def count_tokens(entry, input:, output: 0)
        services.metrics.add("candle_tokens_total", input, model: entry.name, direction: "in")
        services.metrics.add("candle_tokens_total", output, model: entry.name, direction: "out") if output.positive?
      end
    end
  end
end
