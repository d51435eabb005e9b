# frozen_string_literal: true

module Candle
  class Server
    # OpenAI's `/v1/completions`: prompts as they are, without a chat template.
    #
    # @api private
    class OpenAICompletions < OpenAI
      # @param request [Request]
      # @return [Array] an answer of Rack
      def create(request)
        entry = models.fetch(request.field("model", String, default: nil), *WRITERS)
        refuse_unknown(request)
        prompts = prompts(request, entry)
        runs = prompts.flat_map { |prompt| runs(request, entry, prompt) }
        head = { id: identifier("cmpl"), object: "text_completion", created: Time.now.to_i, model: entry.name }
        return streamed(request, entry, runs, head) if request.flag("stream", false)

        results = compute(request) { runs.map { |_, work| work.call } }
        choices = results.each_with_index.map { |result, index| choice(entry, result, index, runs[index].first) }
        json(head.merge(choices: choices, usage: usage_of(results, prompts.size)))
      end

      private

      def refuse_unknown(request)
        unless [nil, 1].include?(request.json["best_of"])
          raise invalid("best_of is not supported by this server", param: "best_of")
        end
        return unless request.flag("echo", false) && request.json["logprobs"]

        raise invalid("echo with logprobs is not supported by this server", param: "echo")
      end

      # A text, several, the tokens of one, or of several.
      def prompts(request, entry)
        prompt = request.field("prompt", String, Array)
        if prompt.is_a?(Array) && prompt.any? && !prompt.all?(String)
          prompt = token_lists(prompt, "prompt").map { |ids| entry.model.tokenizer.decode(ids) }
        end
        found = texts(prompt, "prompt").first
        found.empty? ? raise(invalid("prompt must not be empty", param: "prompt")) : found
      end

      # @return [Array] the text to show first, and the work, for each answer to one prompt
      def runs(request, entry, prompt)
        options = sampling(request).merge(logprobs: logprobs(request))
        generation = answer_to(entry, between(request, entry, prompt), options: options, usual: USUAL,
                                                                       fields: request.json)
        echo = request.flag("echo", false) ? prompt : ""
        Array.new(answers(request)) do |index|
          [echo, ->(&block) { generation.run(seed_offset: index, &block) }]
        end
      end

      # The prompt, or one for what comes between it and the suffix.
      def between(request, entry, prompt)
        suffix = request.field("suffix", String, default: "")
        return prompt if suffix.empty?

        texts(suffix, "suffix")
        found = FillInMiddle.prompt(entry.model.tokenizer, prompt, suffix) if entry.kind == :llm
        found || raise(invalid("the vocabulary of #{entry.name} has no tokens to fill in the middle: pass no suffix",
                               param: "suffix"))
      end

      def logprobs(request)
        count = request.field("logprobs", Integer, default: nil)
        return count if count.nil? || count.between?(0, 20)

        raise invalid("logprobs must be from 0 to 20", param: "logprobs")
      end

      def choice(entry, result, index, echo)
        { index: index, text: echo + result.text, logprobs: logprobs_of(entry, result),
          finish_reason: finish_reason(result) }
      end

      def usage_of(results, prompts)
        counted = usage(results)
        prompt = results.each_slice(results.size / prompts).sum { |slice| slice.first.completion.usage.prompt_tokens }
        counted.merge(prompt_tokens: prompt, total_tokens: prompt + counted[:completion_tokens])
      end

      def streamed(request, entry, runs, head)
        with_usage = usage_wanted?(request)
        prompts = runs.size / answers(request)
        stream(request, "text/event-stream", failure: ->(problem) { Stream.event(error(problem)) }) do |emit|
          results = runs.each_with_index.map { |run, index| stream_answer(entry, run, index, head, emit) }
          emit.call(Stream.event(head.merge(choices: [], usage: usage_of(results, prompts)))) if with_usage
          emit.call("data: [DONE]\n\n")
        end
      end

      def stream_answer(entry, (echo, work), index, head, emit)
        part = lambda do |text, **more|
          choice = { index: index, text: text, logprobs: nil, finish_reason: nil }.merge(more)
          emit.call(Stream.event(head.merge(choices: [choice])))
        end
        part.call(echo) unless echo.empty?
        result = work.call { |kind, piece| part.call(piece) if kind == :text }
        part.call("", finish_reason: finish_reason(result), logprobs: logprobs_of(entry, result))
        result
      end

      def logprobs_of(entry, result)
        list = result.completion.logprobs or return
        tokenizer = entry.model.tokenizer
        tokens = list.map { |token| token_text(tokenizer, token[:id], token[:token]) }
        offsets = tokens.each_with_object([0]) { |text, sums| sums << (sums.last + text.size) }
        { tokens: tokens, token_logprobs: list.map { |token| token[:logprob] }, text_offset: offsets[0...-1],
          top_logprobs: list.map do |token|
            token[:top].to_h { |other| [token_text(tokenizer, other[:id], other[:token]), other[:logprob]] }
          end }
      end
    end
  end
end
