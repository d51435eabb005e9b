# frozen_string_literal: true

module Candle
  # Generation for many prompts in one call, as {LLM} does it.
  module BulkGeneration
    # Completes the prompts of any Enumerable in constant memory: as one text ends, the next prompt joins the others.
    # They come in the order of the prompts.
    #
    # @example
    #   llm = Candle::LLM.from_pretrained("spec/fixtures/tiny/decoders/llama")
    #   llm.generate_each(["the dog", "the cat"], max_length: 3).map { |_prompt, completion| completion.token_ids.size }
    #   # => [3, 3]
    #
    # @param prompts [Enumerable<String, Array<Hash>>] prompts, or conversations for the chat template
    # @param batch [Integer] how many are computed together at most
    # @param options [Hash] as {LLM#generate} takes them
    # @yieldparam prompt [String, Array<Hash>] as it was given
    # @yieldparam completion [Completion]
    # @return [Enumerable, Enumerator] what was given; without a block an Enumerator of `[prompt, completion]`
    # @raise [BulkGenerationError] in the end, when some prompts failed
    def generate_each(prompts, batch: 32, **options)
      batch = Arguments.count(batch, "batch") || raise(ArgumentError, "batch must be a positive Integer, not nil")
      unless Arguments.answers?(prompts, :each) && !(Hash === prompts)
        raise InvalidInputError,
              "prompts must be an Enumerable of Strings, not #{Arguments.shown(prompts)}: a single one goes to generate"
      end
      size = proc { prompts.size if prompts.respond_to?(:size) }
      return enum_for(:generate_each, prompts, batch: batch, **options, &size) unless block_given?

      failures = {}
      in_bulk(prompts, batch, options) do |index, prompt, result|
        Completion === result ? yield(prompt, result) : failures[index] = result
      end
      raise BulkGenerationError, failures if failures.any?

      prompts
    end

    private

    # Whether several prompts were given, and not the messages of one conversation.
    def many?(prompts)
      Array === prompts && prompts.none?(Hash)
    end

    # What `finish` makes of the completions of all prompts, in their order.
    def generate_all(prompts, progress, finish:, **options)
      report = Progress.for(progress)
      results = []
      failures = {}
      in_bulk(prompts, BATCH.fetch(device.kind), options) do |index, _prompt, result|
        results[index] = Completion === result ? finish.call(result) : result
      rescue Error => e
        results[index] = e
      ensure
        failures[index] = results[index] if results[index].is_a?(Error)
        report&.call(index + 1, prompts.size)
      end
      return results if failures.empty?

      failures.each_key { |index| results[index] = nil }
      raise BulkGenerationError.new(failures, results: results)
    end

    # How many prompts of an Array are computed together: a GPU has the arithmetic for more of them.
    BATCH = { cpu: 64, metal: 64, cuda: 1024 }.freeze
    private_constant :BATCH

    # Yields the index, the prompt and the completion of each, or the error that it came to.
    def in_bulk(prompts, batch, options, &block)
      config = GenerationConfig.wrap(options.fetch(:config) { GenerationConfig.balanced })
      clear_cache if reset?(options[:reset_cache])
      options = options.except(:config, :reset_cache)
      window = Window.new(batch, method(:completion))
      prompts.each_with_index do |prompt, index|
        window.begin(index, prompt) { begin_run(prompt, config: config.afresh, **options) }
        window.collect(full: false, &block)
      end
      window.collect(full: true, &block)
    ensure
      window&.release
    end

    # Runs that are under way, and what came of those before which others are still awaited.
    #
    # @api private
    class Window
      # @param batch [Integer] how many runs there are at a time
      # @param complete [#call] makes the completion of a run that is over
      def initialize(batch, complete)
        @batch = batch
        @complete = complete
        @running = {}
        @followed = {}
        @over = {}
        @prompts = {}
        @next = 0
      end

      # @param index [Integer]
      # @param prompt [Object]
      # @yieldreturn [AnswerRun]
      # @return [void]
      def begin(index, prompt)
        @prompts[index] = prompt
        begun = yield
        if begun.several?
          @followed[index] = [begun, followed(begun)]
        else
          @running[index] = begun
        end
      rescue Error => e
        @over[index] = e
      end

      # Waits where there is no room, or for all, and yields in order what is complete.
      #
      # @return [void]
      def collect(full:, &block)
        loop do
          deliver(&block)
          break if (@running.empty? && @followed.empty?) || !(full || crowded?)

          @running.any? ? finish_some : join_one
        end
      end

      # Ends what is still under way.
      #
      # @return [void]
      def release
        @running.each_value(&:release)
        @followed.each_value do |begun, thread|
          thread.kill.join
          begun.release
        end
      end

      private

      # What is complete waits for what came before it, but not without limit.
      def crowded?
        @running.size + @followed.size >= @batch || @prompts.size >= 2 * @batch
      end

      # Whatever runs are over by then.
      def finish_some
        indexes = @running.keys
        LLM::Run.finish_any(@running.values.map(&:run)).each do |at|
          index = indexes[at]
          @over[index] = outcome(@running.delete(index))
        end
      end

      # An answer of several runs is followed by a thread of its own.
      def followed(begun)
        Thread.new { begun.follow }.tap { |thread| thread.report_on_exception = false }
      end

      def join_one
        index, (begun, thread) = @followed.first
        @over[index] = outcome(begun, thread)
        @followed.delete(index)
      end

      def outcome(begun, thread = nil)
        thread ? thread.join : begun.run.finish
        @complete.call(begun)
      rescue Error => e
        e
      ensure
        begun.release
      end

      def deliver
        while (result = @over.delete(@next))
          index = @next
          @next += 1
          yield index, @prompts.delete(index), result
        end
      end
    end
    private_constant :Window
  end
end
