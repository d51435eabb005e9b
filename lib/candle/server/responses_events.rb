# frozen_string_literal: true

module Candle
  class Server
    # The events of a response that is streamed, in the order and with the numbers that OpenAI's clients expect. The
    # first of them wait for the first text, so that an error before it has a status of its own.
    #
    # @api private
    class ResponsesEvents
      # An item of the output: its number, what is known of it, and what was told of it.
      Item = Struct.new(:index, :facts, :told, :ended)
      private_constant :Item

      # @param response [Hash] what is known of it from the beginning
      # @param identifier [#call] makes an id of a prefix
      # @param emit [Proc] takes the text of an event
      def initialize(response, identifier, emit)
        @response = response
        @identifier = identifier
        @emit = emit
        @number = -1
        @items = {}
      end

      # @param piece [String] of what the model thinks
      # @return [void]
      def reasoning(piece)
        item = begin_reasoning
        item.told << piece
        tell("response.reasoning_text.delta", **place(item), delta: piece)
      end

      # @param piece [String]
      # @param logprobs [Array<Hash>] of the tokens that it is made of
      # @return [void]
      def text(piece, logprobs = [])
        tell("response.output_text.delta", **place(begin_message), delta: piece, logprobs: logprobs)
      end

      # @param number [Integer] of the call
      # @param name [String] of the function
      # @return [void]
      def call(number, name)
        begin_call(number, name)
      end

      # @param number [Integer] of the call
      # @param json [String] a piece of its arguments
      # @return [void]
      def arguments(number, json)
        item = @items.fetch([:call, number])
        item.told << json
        tell("response.function_call_arguments.delta", **about(item), delta: json)
      end

      # Ends what is open, tells of what was not told yet, and of the whole.
      #
      # @param response [Hash] the response as it has become
      # @yieldparam whole [Hash] the same with the ids that were told
      # @return [void]
      def finish(response)
        begin_response
        numbers = (0..).each
        items = response[:output].map do |facts|
          case facts[:type]
          when "message" then end_message(facts)
          when "reasoning" then end_reasoning(facts)
          else end_call(numbers.next, facts)
          end
        end
        whole = response.merge(output: items.sort_by(&:index).map(&:facts))
        yield whole if block_given?
        tell(whole[:status] == "completed" ? "response.completed" : "response.incomplete", response: whole)
      end

      private

      def begin_response
        return if @begun

        @begun = true
        tell("response.created", response: @response)
        tell("response.in_progress", response: @response)
      end

      # What was thought or called before is whole when the next item begins.
      def item_of(key, facts)
        return @items[key] if @items[key]

        begin_response
        @items.each { |(kind, _), item| close(kind, item) }
        item = @items[key] = Item.new(@items.size, facts, +"", false)
        tell("response.output_item.added", output_index: item.index, item: facts)
        yield item if block_given?
        item
      end

      def close(kind, item)
        case kind
        when :reasoning then close_reasoning(item)
        when :call then close_call(item)
        end
      end

      def begin_reasoning
        item_of([:reasoning], { type: "reasoning", id: @identifier.call("rs"), status: "in_progress", summary: [],
                                content: [] })
      end

      def end_reasoning(facts)
        item = begin_reasoning
        item.told.replace(facts[:content].first[:text]) unless item.ended
        close_reasoning(item)
        item
      end

      def close_reasoning(item)
        return if item.ended

        item.facts = item.facts.merge(status: "completed", content: [{ type: "reasoning_text", text: item.told }])
        tell("response.reasoning_text.done", **place(item), text: item.told)
        ended(item)
      end

      def begin_message
        facts = { type: "message", id: @identifier.call("msg"), status: "in_progress", role: "assistant", content: [] }
        item_of([:message], facts) do |item|
          tell("response.content_part.added", **place(item), part: { type: "output_text", text: "", annotations: [],
                                                                     logprobs: [] })
        end
      end

      def end_message(facts)
        item = begin_message
        item.facts = facts.merge(id: item.facts[:id])
        part = facts[:content].first
        tell("response.output_text.done", **place(item), text: part[:text], logprobs: part[:logprobs])
        tell("response.content_part.done", **place(item), part: part)
        ended(item)
        item
      end

      def begin_call(number, name)
        item_of([:call, number], { type: "function_call", id: @identifier.call("fc"), call_id: @identifier.call("call"),
                                   name: name, arguments: "", status: "in_progress" })
      end

      def end_call(number, facts)
        item = begin_call(number, facts[:name])
        arguments(number, facts[:arguments]) if item.told.empty?
        close_call(item)
        item
      end

      def close_call(item)
        return if item.ended

        item.facts = item.facts.merge(arguments: item.told, status: "completed")
        tell("response.function_call_arguments.done", **about(item), name: item.facts[:name], arguments: item.told)
        ended(item)
      end

      def ended(item)
        item.ended = true
        tell("response.output_item.done", output_index: item.index, item: item.facts)
      end

      def about(item)
        { item_id: item.facts[:id], output_index: item.index }
      end

      def place(item)
        { **about(item), content_index: 0 }
      end

      def tell(type, **facts)
        @emit.call(Stream.event({ type: type, sequence_number: @number += 1, **facts }, event: type))
      end
    end
  end
end
